//! Strings of the system in JSON: a string where they are text, else a list of bytes, so that
//! nothing is lost on the way. Owns this one encoding, for the wire and for the store.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An argument, a path, or a variable of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub OsString);

impl From<&OsStr> for Text {
    fn from(text: &OsStr) -> Self {
        Self(text.to_owned())
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => out.serialize_str(text),
            None => out.collect_seq(self.0.as_bytes()),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Either)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(OsString::from(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element::<u8>()? {
            bytes.push(byte);
        }
        Ok(Text(OsString::from_vec(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_on_the_way() {
        for bytes in [b"plain".to_vec(), vec![], vec![b'a', 0xff]] {
            let text = Text(OsString::from_vec(bytes));
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text, "{json}");
        }
    }
}
