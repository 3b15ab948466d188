//! Colours of the charts.

use std::fmt;

/// Red, green and blue. `Display` writes the SVG form, `#rrggbb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb(pub u8, pub u8, pub u8);

impl fmt::Display for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rgb(red, green, blue) = self;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

/// Strong colours for the data series under comparison. They stay distinct for colour-blind readers
/// (palette of Okabe and Ito).
pub const STRONG: [Rgb; 6] = [
    Rgb(0x00, 0x72, 0xb2),
    Rgb(0xe6, 0x9f, 0x00),
    Rgb(0x00, 0x9e, 0x73),
    Rgb(0xcc, 0x79, 0xa7),
    Rgb(0xd5, 0x5e, 0x00),
    Rgb(0x56, 0xb4, 0xe9),
];
/// Greys for the reference series.
pub const PALE: [Rgb; 3] = [Rgb(0x8a, 0x8f, 0x98), Rgb(0xc9, 0xcd, 0xd3), Rgb(0x5b, 0x60, 0x68)];
/// Colour of text.
pub const INK: Rgb = Rgb(0x2b, 0x2f, 0x36);
/// Colour of axes and secondary text.
pub const GREY: Rgb = Rgb(0x6b, 0x70, 0x78);
/// Colour of grid lines.
pub const LINE: Rgb = Rgb(0xe4, 0xe7, 0xeb);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_written_in_svg_form() {
        assert_eq!((STRONG[0].to_string(), Rgb(255, 0, 1).to_string()), ("#0072b2".into(), "#ff0001".into()));
    }
}
