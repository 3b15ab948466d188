//! SVG elements, and round scales. No I/O, no locks, no clock.

use std::fmt::{Display, Write};

use measure::colors::{GREY, INK, LINE, PALE, Rgb, STRONG};

use super::TargetInfo;

/// Returns the beginning of a white picture of this size.
pub fn begin(width: f64, height: f64) -> String {
    format!(
        concat!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" "#,
            r##"font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" fill="{ink}">"##,
            "\n",
            r##"<rect width="{w}" height="{h}" fill="#ffffff"/>"##,
            "\n"
        ),
        ink = INK,
        w = width,
        h = height
    )
}

/// Completes the picture.
pub fn end(mut out: String) -> String {
    out.push_str("</svg>\n");
    out
}

/// Returns the style of secondary text.
pub fn small_grey() -> String {
    format!("fill=\"{GREY}\" font-size=\"11\"")
}

/// Adds text. `anchor` selects the part of the text at `x`, `y`; `style` has more attributes.
pub fn text(out: &mut String, x: f64, y: f64, anchor: &str, style: &str, content: &str) {
    let content = escape(content);
    let space = if style.is_empty() { "" } else { " " };
    // Writing to a string cannot fail, here and below.
    let _ =
        writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{space}{style}>{content}</text>"#);
}

/// Adds a filled rectangle with a tooltip.
pub fn rect(
    out: &mut String,
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    fill: impl Display,
    tip: Option<&str>,
) {
    let _ = write!(
        out,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="1.5" fill="{fill}""#
    );
    let _ = match tip {
        Some(tip) => writeln!(out, "><title>{}</title></rect>", escape(tip)),
        None => writeln!(out, "/>"),
    };
}

/// Adds a thin straight line.
pub fn line(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: Rgb) {
    let _ = writeln!(out, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}"/>"#);
}

/// Adds a line through the points.
pub fn polyline(out: &mut String, points: &[(f64, f64)], stroke: Rgb, width: f64) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        r#"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="{width}"/>"#,
        points.join(" ")
    );
}

/// Adds a point with a tooltip.
pub fn dot(out: &mut String, (x, y): (f64, f64), fill: Rgb, tip: &str) {
    let tip = escape(tip);
    let _ = writeln!(
        out,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{fill}"><title>{tip}</title></circle>"#
    );
}

/// Adds the entry of a target to a legend.
pub fn legend(out: &mut String, (x, y): (f64, f64), color: Rgb, info: &TargetInfo) {
    rect(out, x, y, 12.0, 12.0, color, None);
    text(out, x + 18.0, y + 10.5, "start", "", &format!("{}: {}", info.name, info.title));
}

/// Adds the grid lines of a plot from `left` to `right`, `height` high above `base`, with a number
/// each. `step` and `limit` are a [`scale`].
pub fn grid(
    out: &mut String,
    (left, right): (f64, f64),
    (base, height): (f64, f64),
    (step, limit): (f64, f64),
    gap: f64,
) {
    let mut tick = 0.0;
    while tick <= limit * 1.0001 {
        let y = base - tick / limit * height;
        line(out, (left, y), (right, y), if tick == 0.0 { GREY } else { LINE });
        text(out, left - gap, y + 4.0, "end", &small_grey(), &thousands(tick));
        tick += step;
    }
}

/// Returns strong colours for rfs and greys for ceilings.
pub fn colors(targets: &[TargetInfo]) -> Vec<Rgb> {
    let (mut ours, mut ceilings) = (STRONG.iter().cycle(), PALE.iter().cycle());
    let color = |info: &TargetInfo| if info.ceiling { ceilings.next() } else { ours.next() };
    targets.iter().filter_map(color).copied().collect()
}

/// Returns the distance of grid lines (1, 2 or 5 times a power of ten; four to nine lines) and the
/// top of the scale.
pub fn scale(largest: f64) -> (f64, f64) {
    if largest <= 0.0 || !largest.is_finite() {
        return (1.0, 1.0);
    }
    let rough = largest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| *s >= rough);
    let step = step.unwrap_or(power);
    (step, (largest / step).ceil() * step)
}

/// Formats a number for an axis.
pub fn thousands(value: f64) -> String {
    if value < 10.0 && value.fract() > 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round() {
        assert_eq!(scale(48000.0), (10000.0, 50000.0));
        assert_eq!(scale(9.0), (2.0, 10.0));
        assert_eq!(scale(0.0), (1.0, 1.0));
        assert_eq!(scale(f64::INFINITY), (1.0, 1.0));
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(thousands(100.0), "100");
        assert_eq!(thousands(0.5), "0.5");
    }

    #[test]
    fn text_is_escaped_and_elements_are_closed() {
        let mut out = begin(10.0, 20.0);
        text(&mut out, 1.0, 2.0, "end", "", "a < b & c");
        dot(&mut out, (1.0, 2.0), INK, "\"d\" > e");
        line(&mut out, (0.0, 0.0), (1.0, 1.0), GREY);
        polyline(&mut out, &[(0.0, 0.0), (1.0, 1.25)], GREY, 2.0);
        let out = end(out);
        measure::testing::assert_well_formed(&out);
        assert!(out.contains("a &lt; b &amp; c") && out.contains("&quot;d&quot; &gt; e"), "{out}");
        assert!(out.contains("points=\"0.0,0.0 1.0,1.2\""), "{out}");
    }
}
