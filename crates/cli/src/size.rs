//! Sizes as people write them: `512M`, `4G`. Owns reading and writing them; units are powers of
//! 1024.

/// Reads a size. The flag is named by the caller.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("use a whole number with a unit: 64K, 512M, 4G or 1T".to_owned()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    // Beyond this the store could not hold it as a number.
    bytes.filter(|n| i64::try_from(*n).is_ok()).ok_or_else(|| "the size is too large".to_owned())
}

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
    fn sizes_read_as_written_and_nonsense_is_refused() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("64K", 65_536), ("512M", 512 << 20), ("4G", 4 << 30)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1M", "1.5G", "1 G", "1m", "1MB", "9999999T", "99999999999999999999"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 K"), (3 << 30, "3.0 G")] {
            assert_eq!(words(bytes), text);
        }
    }
}
