//! Medians, spreads and ratios. No I/O, no locks, no clock.

/// Returns the median, which is the mean of the middle two values if their number is even. Returns
/// `None` if `values` is empty or contains NaN.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 })
}

/// Returns `(largest - smallest) / median`, the spread of the rounds. It is zero for a single
/// value.
pub fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    (middle > 0.0).then(|| (max - min) / middle)
}

/// Returns `a / b`, or `None` if `b` is not positive or `a` is not finite.
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0 && a.is_finite()).then(|| a / b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN]), None);
        assert_eq!(median(&[5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn spreads_and_ratios() {
        assert_eq!(spread(&[7.0]), Some(0.0));
        assert_eq!(spread(&[8.0, 10.0, 12.0]), Some(0.4));
        assert_eq!(spread(&[0.0]), None);
        assert_eq!(ratio(1.0, 2.0), Some(0.5));
        assert_eq!(ratio(1.0, 0.0), None);
    }
}
