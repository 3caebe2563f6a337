//! Durations as people write them: `500ms`, `90s`, `15m`, `2h`. Owns writing them; they are read as
//! in configuration.

use std::time::Duration;

pub(crate) use kennel_daemon::units::duration as parse;

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
