//! What must not be guessed or met twice: ids of runs, ids of sessions, the token. Owns the one
//! place that reads the system's source of randomness.

use std::fs::File;
use std::io::{self, Read};

/// Letters of an id: 32 of them, none that reads like another.
const ID_LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
/// Letters in an id: 50 bits, so that ids made at random do not meet.
const ID_LENGTH: usize = 10;
/// Bytes of the token before they are written as hexadecimal digits.
const TOKEN_BYTES: usize = 32;

/// Digits of a token.
pub(crate) const TOKEN_DIGITS: usize = TOKEN_BYTES * 2;

fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new id for a run, for a client that wants to be able to ask again.
pub fn new_run_id() -> io::Result<String> {
    let letter = |byte: &u8| char::from(ID_LETTERS[usize::from(byte % 32)]);
    Ok(bytes::<ID_LENGTH>()?.iter().map(letter).collect())
}

/// A new token.
pub(crate) fn token() -> io::Result<String> {
    Ok(hex(&bytes::<TOKEN_BYTES>()?))
}

/// A random UUID, as agents' clients want them for sessions.
pub(crate) fn uuid() -> io::Result<String> {
    let mut bytes = bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex(&bytes);
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_has_the_shape_others_expect() {
        let id = new_run_id().unwrap();
        assert!(id.len() == ID_LENGTH && kennel_process::RunId::new(id.as_str()).is_ok(), "{id}");
        assert_eq!(token().unwrap().len(), TOKEN_DIGITS);
        let uuid = uuid().unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
        assert_eq!(uuid.as_bytes()[14], b'4', "{uuid}");
        assert_ne!(new_run_id().unwrap(), id);
    }
}
