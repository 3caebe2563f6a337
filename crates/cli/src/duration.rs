//! Durations as people write them: `500ms`, `90s`, `15m`, `2h`. Owns reading and writing them.

use std::time::Duration;

/// Longer than anything we ever wait for, and far from every overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Reads a duration. The flag is named by the caller.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
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

/// Writes a duration with the one or two units that matter.
pub(crate) fn words(duration: Duration) -> String {
    let (seconds, us) = (duration.as_secs(), duration.as_micros());
    match seconds {
        0 if us < 1000 => format!("{us} us"),
        0 => format!("{} ms", us / 1000),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} m", seconds / 3600, seconds / 60 % 60),
        86_400.. => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
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
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
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
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_written_with_what_matters() {
        for (ms, text) in [
            (0, "0 us"),
            (21, "21 ms"),
            (3200, "3.2 s"),
            (192_000, "3 m 12 s"),
            (7_260_000, "2 h 1 m"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(words(Duration::from_millis(ms)), text);
        }
    }
}
