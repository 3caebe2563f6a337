//! Values of variables that look like credentials, kept out of what we tell. Owns which variables
//! those are, and how text is searched for their values without keeping the values.
//!
//! What is kept of a value is its length and a 48-bit sum under a key of the run's own: enough to
//! find it again in text after a restart, too little to make it up. What a run itself writes into
//! its output is its own, and is not changed: only what is quoted from it elsewhere is.

use serde::{Deserialize, Serialize};

use crate::text::Text;

/// What is put in the place of a value.
pub(crate) const MARK: &str = "[redacted]";
/// Shorter values are words that occur anywhere.
const SHORTEST: usize = 6;
/// The longest value that is looked for: private keys fit, and a piece of text read to be searched
/// has to hold one.
pub(crate) const LONGEST: usize = 16 << 10;
/// Values of one run that are looked for, lines of long ones included: each costs a pass over what
/// is told, which is short.
const MAX_SECRETS: usize = 256;
/// A line of a value that has several is looked for by itself from this length on: output is told
/// by lines, and a line of a private key has 64.
const SHORTEST_LINE: usize = 16;
/// A prime: sums are taken modulo it.
const MODULUS: u128 = (1 << 61) - 1;
/// Bits of a sum that are kept.
const KEPT_BITS: u32 = 48;

/// What is kept of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint(u32, u64);

/// The values of one run, as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Secrets {
    key: u64,
    of: Vec<Fingerprint>,
}

impl Secrets {
    /// Those of an environment, for the run of this id.
    pub(crate) fn of(env: &[(Text, Text)], run: &str) -> Self {
        let key = key_of(run);
        let mut of = Vec::new();
        for value in values(env).chain(values(env).flat_map(lines)) {
            let found = Fingerprint(value.len() as u32, kept(sum(value, key)));
            if !of.contains(&found) && of.len() < MAX_SECRETS {
                of.push(found);
            }
        }
        // The same as what is read back where nothing was kept.
        if of.is_empty() { Self::default() } else { Self { key, of } }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The text with every value in it replaced.
    pub(crate) fn redact(&self, text: &[u8]) -> String {
        self.redact_from(text, 0)
    }

    /// The same, of what follows the first so many bytes; those are searched too, because a value
    /// may begin in them.
    pub(crate) fn redact_from(&self, text: &[u8], from: usize) -> String {
        let mut hidden = vec![false; text.len()];
        for secret in &self.of {
            self.hide(text, *secret, &mut hidden);
        }
        let (mut out, mut at) = (Vec::with_capacity(text.len()), from);
        while at < text.len() {
            if hidden[at] {
                out.extend_from_slice(MARK.as_bytes());
                at += hidden[at..].iter().take_while(|hidden| **hidden).count();
            } else {
                out.push(text[at]);
                at += 1;
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Marks where a value stands: one sum that moves along the text.
    fn hide(&self, text: &[u8], Fingerprint(length, wanted): Fingerprint, hidden: &mut [bool]) {
        let length = length as usize;
        if length == 0 || text.len() < length {
            return;
        }
        let key = u128::from(self.key);
        let leading = (1..length).fold(1_u128, |power, _| power * key % MODULUS);
        let mut moving = sum(&text[..length], self.key);
        for at in 0.. {
            if kept(moving) == wanted {
                hidden[at..at + length].fill(true);
            }
            let Some(next) = text.get(at + length) else { return };
            let without = u128::from(moving) + MODULUS - u128::from(text[at]) * leading % MODULUS;
            moving = ((without * key + u128::from(*next)) % MODULUS) as u64;
        }
    }
}

fn kept(sum: u64) -> u64 {
    sum & ((1 << KEPT_BITS) - 1)
}

fn sum(bytes: &[u8], key: u64) -> u64 {
    let add = |sum: u128, byte: &u8| (sum * u128::from(key) + u128::from(*byte)) % MODULUS;
    bytes.iter().fold(0, add) as u64
}

/// FNV-1a of the run's id, within the modulus: two runs keep different sums of one value.
fn key_of(run: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = run.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    (u128::from(hash) % (MODULUS - 1000) + 500) as u64
}

/// The values in an environment that are to be kept out of sight.
pub(crate) fn values(env: &[(Text, Text)]) -> impl Iterator<Item = &[u8]> {
    env.iter().filter_map(|(name, value)| {
        let (name, value) = (name.0.as_encoded_bytes(), value.0.as_encoded_bytes());
        let whole = names_a_credential(name).then_some(value);
        let found = whole.or_else(|| password_in(value))?.trim_ascii();
        (SHORTEST..=LONGEST).contains(&found.len()).then_some(found)
    })
}

/// The lines of a value that has several, without those that say what it is and not what is in it.
fn lines(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let several = value.contains(&b'\n');
    let lines = value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(move |line| several && line.len() >= SHORTEST_LINE && !line.starts_with(b"-----"))
}

/// Command lines may quote what the environment has: replaced while the values are known.
pub(crate) fn redact_argument(argument: &Text, env: &[(Text, Text)]) -> Text {
    let bytes = argument.0.as_encoded_bytes();
    let mut values: Vec<&[u8]> = values(env).chain(values(env).flat_map(lines)).collect();
    // One may begin like another: nothing of the longer one is to be left.
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        match values.iter().find(|value| bytes[at..].starts_with(value)) {
            Some(value) => {
                out.extend_from_slice(MARK.as_bytes());
                at += value.len();
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    if out == bytes {
        return argument.clone();
    }
    Text(String::from_utf8_lossy(&out).into_owned().into())
}

/// True if a variable's name says that its value is a credential, and not where one is kept.
fn names_a_credential(name: &[u8]) -> bool {
    const ENDS: [&str; 8] =
        ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS"];
    const WORDS: [&str; 8] =
        ["AUTH", "AUTHORIZATION", "PASS", "PW", "BEARER", "COOKIE", "APIKEY", "PAT"];
    const PLACES: [&str; 6] = ["SOCK", "FILE", "PATH", "DIR", "HOME", "AGENT"];
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let name = name.to_ascii_uppercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    if words.last().is_some_and(|last| PLACES.contains(last)) {
        return false;
    }
    words.iter().any(|word| WORDS.contains(word) || ENDS.iter().any(|end| word.ends_with(end)))
}

/// The password in an address like `scheme://user:password@host`.
fn password_in(value: &[u8]) -> Option<&[u8]> {
    let text = std::str::from_utf8(value).ok()?;
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (_, password) = user.split_once(':')?;
    Some(password.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(Text, Text)> {
        pairs.iter().map(|(name, value)| (Text(name.into()), Text(value.into()))).collect()
    }

    #[test]
    fn names_that_look_like_credentials() {
        for name in [
            "ANTHROPIC_API_KEY",
            "GITHUB_TOKEN",
            "GH_PAT",
            "aws_secret_access_key",
            "AWS_ACCESS_KEY_ID",
            "DB_PASSWORD",
            "MYSQL_PWD_PASSWD",
            "NPM_AUTH",
            "OPENAI_APIKEY",
            "SESSION_COOKIE",
            "CLIENTSECRET",
        ] {
            assert!(names_a_credential(name.as_bytes()), "{name}");
        }
        for name in ["PATH", "HOME", "SSH_AUTH_SOCK", "PWD", "KEYBOARD", "TERM", "TOKENS_FILE"] {
            assert!(!names_a_credential(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn values_are_found_wherever_they_stand_and_nothing_else_is() {
        let env = env(&[
            ("API_KEY", "sk-123456"),
            ("DATABASE_URL", "postgres://me:hunter22@db/x"),
            ("OTHER_TOKEN", "short"),
            ("PATH", "/usr/bin"),
        ]);
        let secrets = Secrets::of(&env, "run1");
        for (text, expected) in [
            ("sk-123456", "[redacted]"),
            ("a sk-123456 b sk-123456", "a [redacted] b [redacted]"),
            ("sk-12345", "sk-12345"),
            ("xsk-1234567", "x[redacted]7"),
            ("postgres://me:hunter22@db/x", "postgres://me:[redacted]@db/x"),
            ("short /usr/bin", "short /usr/bin"),
            ("", ""),
        ] {
            assert_eq!(secrets.redact(text.as_bytes()), expected, "{text}");
            let argument = redact_argument(&Text(text.into()), &env);
            assert_eq!(argument, Text(expected.into()), "{text}");
        }
        let text = b"..sk-123456 end";
        assert_eq!(secrets.redact_from(text, 5), "[redacted] end", "it began before");
    }

    #[test]
    fn nothing_of_a_value_is_left_that_begins_like_another_has_lines_or_blanks_around_it() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----";
        let env = env(&[
            ("A_KEY", "sk-123456"),
            ("B_KEY", "sk-123456-and-more"),
            ("C_KEY", key),
            ("D_KEY", "in-a-file\n"),
        ]);
        let secrets = Secrets::of(&env, "run1");
        for (text, expected) in [
            ("x sk-123456-and-more y", "x [redacted] y"),
            ("got MIIEvQIBADANBgkqhkiG9w0B", "got [redacted]"),
            (key, "[redacted]"),
            ("-----BEGIN KEY-----", "-----BEGIN KEY-----"),
            ("--token=in-a-file", "--token=[redacted]"),
        ] {
            assert_eq!(secrets.redact(text.as_bytes()), expected, "{text}");
            let argument = redact_argument(&Text(text.into()), &env);
            assert_eq!(argument, Text(expected.into()), "{text}");
        }
    }

    #[test]
    fn what_is_kept_finds_again_and_does_not_hold_the_value() {
        let env = env(&[("API_KEY", "sk-topsecret")]);
        let kept = serde_json::to_string(&Secrets::of(&env, "run1")).unwrap();
        assert!(!kept.contains("topsecret"));
        let secrets: Secrets = serde_json::from_str(&kept).unwrap();
        assert_eq!(secrets.redact(b"\xff sk-topsecret"), "\u{fffd} [redacted]");
        assert_ne!(secrets.of, Secrets::of(&env, "run2").of);
    }
}
