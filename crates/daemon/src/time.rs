//! Moments on the wire: RFC 3339 in UTC with milliseconds. Owns the two conversions; reads a clock
//! in one function and knows no time zone.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment, in milliseconds of the Unix clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

const MS_PER_DAY: u64 = 86_400_000;
/// The last moment of the year 9999: a year has four digits. What a broken clock put after it is
/// shown as this.
const LAST: u64 = 253_402_300_799_999;

impl Time {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(since.as_millis() as u64)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.0.min(LAST);
        let (days, ms) = (at / MS_PER_DAY, at % MS_PER_DAY);
        let (year, month, day) = civil(days);
        let (h, m) = (ms / 3_600_000, ms / 60_000 % 60);
        let (s, ms) = (ms / 1000 % 60, ms % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
    }
}

/// Date of a day since 1970, after Howard Hinnant's `civil_from_days`: years begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// Day since 1970 of a date, the inverse.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    let of_era = (year % 400) * 365 + (year % 400) / 4 - (year % 400) / 100 + of_year;
    (year / 400 * 146_097 + of_era).checked_sub(719_468)
}

impl FromStr for Time {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
        let read = || {
            let days = days(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
            let seconds = number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
            Some(Self(days * MS_PER_DAY + seconds * 1000 + number(20, 23)?))
        };
        read().filter(|_| text.ends_with('Z')).ok_or("not a time like 2026-01-31T12:00:00.000Z")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them_and_come_back() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (LAST, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Time(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Time(ms)));
        }
        assert!("yesterday".parse::<Time>().is_err());
        assert_eq!(Time(u64::MAX).to_string(), Time(LAST).to_string());
        for day in (0..40_000).step_by(17) {
            let (y, m, d) = civil(day);
            assert_eq!(days(y, m, d), Some(day));
        }
    }
}
