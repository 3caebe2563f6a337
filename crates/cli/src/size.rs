//! Sizes as people write them: `512M`, `4G`. Owns writing them; they are read as in configuration.

pub(crate) use kennel_daemon::units::size as parse;

/// Writes a size with the unit that suits it.
pub(crate) fn words(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| bytes >= 1 << shift);
    match unit {
        None => format!("{bytes} B"),
        Some((shift, name)) => format!("{:.1} {name}", bytes as f64 / (1_u64 << shift) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_with_the_unit_that_suits_them() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 K"), (3 << 30, "3.0 G")] {
            assert_eq!(words(bytes), text);
        }
    }
}
