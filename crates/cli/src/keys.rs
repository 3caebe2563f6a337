//! The key that detaches: its name, the forms in which terminals send it, and what pressing it
//! means.
//!
//! Owns: the decision, typed bytes in, bytes to pass on and "detach" out. Reads nothing and has no
//! clock.

use std::time::{Duration, Instant};

/// A second press within this time means that the key itself is wanted. As long as a double click.
const DOUBLE_PRESS: Duration = Duration::from_millis(400);
/// What a byte keeps of a letter when Ctrl is held with it.
const CTRL_MASK: u8 = 0x1f;

/// A key that is pressed together with Ctrl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKey {
    letter: u8,
}

impl DetachKey {
    /// Reads `ctrl-x`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let refused = || "use ctrl- and a letter or one of [ ] \\ ^ _, as in ctrl-]".to_owned();
        let lower = text.to_ascii_lowercase();
        let letter = match lower.strip_prefix("ctrl-").map(str::as_bytes) {
            Some([letter @ (b'a'..=b'z' | b'[' | b']' | b'\\' | b'^' | b'_')]) => *letter,
            Some(_) | None => return Err(refused()),
        };
        // Enter and Tab arrive as these, and Ctrl-[ is Escape, with which every other key begins.
        if matches!(letter, b'[' | b'm' | b'j' | b'i') {
            return Err(format!("ctrl-{} is a key of its own; {}", letter as char, refused()));
        }
        Ok(Self { letter })
    }

    /// As people write it.
    pub(crate) fn name(&self) -> String {
        format!("Ctrl-{}", self.letter.to_ascii_uppercase() as char)
    }

    /// The byte a plain terminal sends.
    pub(crate) fn byte(&self) -> u8 {
        self.letter & CTRL_MASK
    }

    /// Every form in which it may arrive: plain, and the two that programs can switch a terminal
    /// to (the "kitty" protocol and xterm's `modifyOtherKeys`). Agents do.
    fn presses(&self) -> [Vec<u8>; 3] {
        let letter = self.letter;
        let extended = [format!("\x1b[{letter};5u"), format!("\x1b[27;5;{letter}~")];
        let [kitty, xterm] = extended.map(String::into_bytes);
        [vec![self.byte()], kitty, xterm]
    }

    /// That it was let go, which some programs ask to be told.
    fn release(&self) -> Vec<u8> {
        format!("\x1b[{};5:3u", self.letter).into_bytes()
    }
}

/// What is typed, on its way to the run.
#[derive(Debug)]
pub(crate) struct Keys {
    presses: [Vec<u8>; 3],
    release: Vec<u8>,
    /// When the key was pressed, if nothing has come since.
    pressed: Option<Instant>,
}

/// What is to be done about some typed bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    /// To be passed on.
    pub(crate) bytes: Vec<u8>,
    /// And then to be detached.
    pub(crate) detach: bool,
}

impl Keys {
    pub(crate) fn new(key: &DetachKey) -> Self {
        Self { presses: key.presses(), release: key.release(), pressed: None }
    }

    /// Takes what was typed. Pressed once, the key detaches; twice, it is passed on.
    pub(crate) fn take(&mut self, typed: &[u8], now: Instant) -> Typed {
        let (mut rest, mut bytes) = (typed, Vec::new());
        while !rest.is_empty() {
            if let Some(form) = self.presses.iter().find(|form| rest.starts_with(form)) {
                rest = &rest[form.len()..];
                match self.pressed.take() {
                    Some(_) => bytes.extend_from_slice(form),
                    None => self.pressed = Some(now),
                }
            } else if self.pressed.is_none() {
                bytes.push(rest[0]);
                rest = &rest[1..];
            } else if rest.starts_with(&self.release) {
                rest = &rest[self.release.len()..];
            } else {
                // Pressed once, and something else after it.
                return Typed { bytes, detach: true };
            }
        }
        Typed { bytes, detach: false }
    }

    /// When a key that was pressed once is to be obeyed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pressed.map(|at| at + DOUBLE_PRESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(typed: &[&[u8]]) -> (Vec<u8>, bool, bool) {
        let mut keys = Keys::new(&DetachKey::parse("ctrl-]").unwrap());
        let now = Instant::now();
        let mut all = Vec::new();
        for piece in typed {
            let Typed { bytes, detach } = keys.take(piece, now);
            all.extend(bytes);
            if detach {
                return (all, true, false);
            }
        }
        (all, false, keys.deadline().is_some())
    }

    #[test]
    fn once_detaches_twice_is_passed_on_and_all_else_too() {
        let bytes = |b: &[u8]| b.to_vec();
        for (typed, expected) in [
            (&[&b"ls\r"[..]][..], (bytes(b"ls\r"), false, false)),
            (&[b"ab\x1d"], (bytes(b"ab"), false, true)),
            (&[b"ab\x1d", b"c"], (bytes(b"ab"), true, false)),
            (&[b"a\x1d\x1db"], (bytes(b"a\x1db"), false, false)),
            (&[b"\x1d", b"\x1d"], (bytes(b"\x1d"), false, false)),
            (&[b"\x1d\x1d\x1d"], (bytes(b"\x1d"), false, true)),
            (&[b"\x1b[93;5u"], (vec![], false, true)),
            (&[b"\x1b[93;5u", b"\x1b[93;5:3u"], (vec![], false, true)),
            (&[b"\x1b[93;5u\x1b[93;5:3u\x1b[93;5u"], (bytes(b"\x1b[93;5u"), false, false)),
            (&[b"\x1b[27;5;93~x"], (vec![], true, false)),
            (&[b"\x1b[A\x1b[94;5u"], (bytes(b"\x1b[A\x1b[94;5u"), false, false)),
        ] {
            assert_eq!(taken(typed), expected, "{typed:?}");
        }
    }

    #[test]
    fn keys_are_named_as_people_write_them() {
        for (text, byte, name) in [
            ("ctrl-]", 0x1d, "Ctrl-]"),
            ("Ctrl-X", 0x18, "Ctrl-X"),
            ("ctrl-\\", 0x1c, "Ctrl-\\"),
            ("ctrl-a", 1, "Ctrl-A"),
        ] {
            let key = DetachKey::parse(text).unwrap();
            assert_eq!((key.byte(), key.name().as_str()), (byte, name));
        }
        for text in ["", "]", "ctrl-", "ctrl-ab", "alt-x", "ctrl-[", "ctrl-m", "ctrl-1", "ctrl-ä"]
        {
            assert!(DetachKey::parse(text).is_err(), "{text}");
        }
    }
}
