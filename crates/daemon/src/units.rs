//! Durations and sizes as people write them, `15m` and `4G`: one way on the command line and in
//! configuration. Owns reading them; units of sizes are powers of 1024.

use std::time::Duration;

/// Longer than anything we ever wait for, and far from every overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Reads a duration: `500ms`, `90s`, `15m`, `2h`. What it is for is named by the caller.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("use a whole number with a unit: 500ms, 90s, 15m or 2h".to_owned()),
    };
    let ms = number.parse::<u64>().ok().and_then(|n| n.checked_mul(ms_per_unit));
    ms.map(Duration::from_millis)
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| "use a number of at most ten years".to_owned())
}

/// Reads a size: `64K`, `512M`, `4G`. What it is for is named by the caller.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" if digits > 0 => 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written_and_nonsense_is_refused() {
        for (text, ms) in [
            ("500ms", 500),
            ("0s", 0),
            ("90s", 90_000),
            ("15m", 900_000),
            ("2h", 7_200_000),
            ("007s", 7000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            "1S",
            "1d",
            "1s2m",
            "ä",
            "1µs",
            "inf",
            "99999999999999999999h",
            "18446744073709551615h",
            "100000h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_read_as_written_and_nonsense_is_refused() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("64K", 65_536), ("512M", 512 << 20), ("4G", 4 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1M", "1.5G", "1 G", "1m", "1MB", "9999999T", "99999999999999999999"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
