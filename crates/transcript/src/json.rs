//! Reading JSON that may be anything: leaves that accept every kind, objects that may be missing.
//!
//! Owns the shapes from which the clients' lines are built. They borrow from the line, keep only
//! what is asked for, and skip the rest without a copy. A leaf of an unexpected kind reads as
//! empty, so that a release which turns a string into an object costs one fact and not the whole
//! line.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The longest name, id or message that is kept: enough for every id seen and for the first
/// sentence of an error, and small enough to keep thousands.
const MAX_KEPT_BYTES: usize = 256;

/// The longest line that is checked for UTF-8 as a whole: above it the check costs more than it
/// saves.
const MAX_CHECKED_BYTES: usize = 4096;

/// One object from the front of `bytes`, and how many bytes it took.
pub(crate) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<(T, usize)> {
    // Short lines are checked for UTF-8 once as a whole, which is faster than each of their
    // strings. Long ones have little that is kept; and what is not kept need not be UTF-8 in
    // either.
    if bytes.len() <= MAX_CHECKED_BYTES
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return first(serde_json::Deserializer::from_str(text));
    }
    first(serde_json::Deserializer::from_slice(bytes))
}

fn first<'a, T, R>(mut reader: serde_json::Deserializer<R>) -> Option<(T, usize)>
where
    T: Deserialize<'a>,
    R: serde_json::de::Read<'a>,
{
    let value = T::deserialize(&mut reader).ok()?;
    Some((value, reader.into_iter::<IgnoredAny>().byte_offset()))
}

/// A text, or nothing where the stream has something else.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy of bounded length.
    pub(crate) fn kept(&self) -> String {
        front(&self.0).to_owned()
    }

    /// A copy of bounded length, unless there is nothing.
    pub(crate) fn some(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.kept())
    }
}

/// The front of a text, cut between characters.
pub(crate) fn front(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_KEPT_BYTES)]
}

/// Milliseconds since 1970 of a time as JavaScript writes it, such as `2026-11-15T19:24:19.864Z`.
pub(crate) fn unix_ms(time: &str) -> Option<u64> {
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = clock.split([':', '.']).map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let milli = clock.next().flatten().unwrap_or(0);
    let in_range = (1970..10_000).contains(&year) && (1..=12).contains(&month);
    if !in_range || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years are counted from March, so that the day of a leap year comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1;
    let days = days.checked_sub(DAYS_TO_1970)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milli.min(999))
}

/// From the first of March of the year 0 to the first of January of 1970.
const DAYS_TO_1970: u64 = 719_468;

/// Accepts every kind of value; a visitor overrides the kinds it wants.
macro_rules! ignore {
    ($($kind:ident: $argument:ty),*) => {
        $(fn $kind<E>(self, _: $argument) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        })*
    };
}

macro_rules! ignore_rest {
    () => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("anything")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
}

macro_rules! ignore_map {
    () => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

macro_rules! ignore_seq {
    () => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Any<'a> {
            type Value = Text<'a>;

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'a>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'a>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            ignore!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64);
            ignore_rest!();
            ignore_map!();
            ignore_seq!();
        }

        from.deserialize_any(Any(PhantomData))
    }
}

/// A count, or zero where the stream has something else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count(pub(crate) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match Number::deserialize(from)?.0 {
            // Saturates, and takes what is not a number for zero.
            Some(number) => number as u64,
            None => 0,
        }))
    }
}

/// A number, or nothing where the stream has something else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Number(pub(crate) Option<f64>);

impl Number {
    /// Money: what is negative or infinite is no amount.
    pub(crate) fn amount(self) -> Option<f64> {
        self.0.filter(|n| n.is_finite() && *n >= 0.0)
    }

    /// A count or a time, if it is told.
    pub(crate) fn count(self) -> Option<u64> {
        self.0.map(|n| n as u64)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Number;

            fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
                Ok(Number(Some(number as f64)))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
                Ok(Number(Some(number as f64)))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
                Ok(Number(Some(number)))
            }

            fn visit_str<E>(self, _: &str) -> Result<Number, E> {
                Ok(Number(None))
            }

            ignore!(visit_bool: bool);
            ignore_rest!();
            ignore_map!();
            ignore_seq!();
        }

        from.deserialize_any(Any)
    }
}

/// True, or false where the stream has something else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flag(pub(crate) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Flag;

            fn visit_bool<E>(self, flag: bool) -> Result<Flag, E> {
                Ok(Flag(flag))
            }

            fn visit_str<E>(self, _: &str) -> Result<Flag, E> {
                Ok(Flag(false))
            }

            ignore!(visit_u64: u64, visit_i64: i64, visit_f64: f64);
            ignore_rest!();
            ignore_map!();
            ignore_seq!();
        }

        from.deserialize_any(Any)
    }
}

/// An object, or its empty form where the stream has something else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loose<T>(pub(crate) T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Loose<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Any<T> {
            type Value = Loose<T>;

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Loose<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Loose)
            }

            fn visit_str<E>(self, _: &str) -> Result<Loose<T>, E> {
                Ok(Loose(T::default()))
            }

            ignore!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64);
            ignore_rest!();
            ignore_seq!();
        }

        from.deserialize_any(Any(PhantomData))
    }
}

/// The elements of an array, one folded into the next; nothing where the stream has something else.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fold<T>(pub(crate) T);

/// What takes up the elements of an array, one by one.
pub(crate) trait Gather<'de>: Default {
    /// What an element reads as.
    type Element: Deserialize<'de>;

    /// Takes up one.
    fn gather(&mut self, element: Self::Element);
}

impl<'de, T: Gather<'de>> Deserialize<'de> for Fold<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any<T>(PhantomData<T>);

        impl<'de, T: Gather<'de>> Visitor<'de> for Any<T> {
            type Value = Fold<T>;

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Fold<T>, A::Error> {
                let mut all = T::default();
                while let Some(element) = seq.next_element()? {
                    all.gather(element);
                }
                Ok(Fold(all))
            }

            fn visit_str<E>(self, _: &str) -> Result<Fold<T>, E> {
                Ok(Fold(T::default()))
            }

            ignore!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64);
            ignore_rest!();
            ignore_map!();
        }

        from.deserialize_any(Any(PhantomData))
    }
}

/// The values of an object whose keys are names, gathered; nothing where there is something else.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Values<T>(pub(crate) T);

impl<'de, T: Gather<'de>> Deserialize<'de> for Values<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All<T>(PhantomData<T>);

        impl<'de, T: Gather<'de>> Visitor<'de> for All<T> {
            type Value = T;

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
                let mut all = T::default();
                while let Some((IgnoredAny, value)) = map.next_entry()? {
                    all.gather(value);
                }
                Ok(all)
            }

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
        }

        struct Inner<T>(T);

        impl<T: Default> Default for Inner<T> {
            fn default() -> Self {
                Self(T::default())
            }
        }

        impl<'de, T: Gather<'de>> Deserialize<'de> for Inner<T> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_map(All(PhantomData)).map(Inner)
            }
        }

        Ok(Self(Loose::<Inner<T>>::deserialize(from)?.0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_javascript_writes_them() {
        assert_eq!(unix_ms("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(unix_ms("2000-02-29T12:00:00Z"), Some(951_825_600_000));
        assert_eq!(unix_ms("2026-11-15T19:24:19.864Z"), Some(1_794_770_659_864));
        for no_time in ["", "Z", "2026-13-01T00:00:00Z", "2026-11-15 19:24:19", "x-y-zT1:2:3Z"] {
            assert_eq!(unix_ms(no_time), None, "{no_time}");
        }
    }

    #[test]
    fn a_leaf_of_another_kind_reads_as_empty() {
        #[derive(Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        struct Leaves<'a> {
            #[serde(borrow)]
            text: Text<'a>,
            count: Count,
            number: Number,
            flag: Flag,
            inner: Loose<Inner>,
        }

        #[derive(Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        struct Inner {
            count: Count,
        }

        for value in ["null", "true", "1", "-1", "1.5", "1e400", "\"x\"", "[1,[2]]", "{\"a\":{}}"] {
            let fields = ["text", "count", "number", "flag", "inner"];
            let fields: Vec<String> =
                fields.iter().map(|field| format!(r#""{field}":{value}"#)).collect();
            let line = format!("{{{}}}", fields.join(","));
            let read = object::<Leaves<'_>>(line.as_bytes());
            // A number beyond all numbers is no JSON that can be read.
            assert_eq!(read.is_some(), value != "1e400", "{value}");
        }
        let line = br#"{"text":"a","count":3,"number":0.5,"flag":true,"inner":{"count":4}} tail"#;
        let (leaves, length) = object::<Leaves<'_>>(line).expect("it is well-formed");
        assert_eq!(length, line.len() - " tail".len());
        assert_eq!((leaves.text.as_str(), leaves.count.0), ("a", 3));
        assert_eq!((leaves.number.0, leaves.flag.0), (Some(0.5), true));
        assert_eq!(leaves.inner.0.count.0, 4);
    }
}
