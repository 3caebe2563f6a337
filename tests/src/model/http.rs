//! As much of HTTP/1.1 as agents speak with their model: one request, one answer, and the
//! connection is closed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// The longest head that is read: clients send a few hundred bytes of headers.
const MAX_HEAD_BYTES: u64 = 64 << 10;
/// The longest body that is read: a long conversation with all its tools is a few megabytes.
const MAX_BODY_BYTES: u64 = 64 << 20;

/// A request, whole.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    path: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Reads one; none if nobody asks anything.
    pub(super) fn read(stream: &TcpStream) -> io::Result<Option<Self>> {
        let mut input = BufReader::new(stream);
        let mut head = input.by_ref().take(MAX_HEAD_BYTES);
        let first = line(&mut head)?;
        let mut words = first.split(' ').map(str::to_owned);
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
        let (mut length, mut chunked) = (0, false);
        loop {
            let header = line(&mut head)?.to_ascii_lowercase();
            let Some((name, value)) = header.split_once(':') else { break };
            match name {
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "transfer-encoding" => chunked = value.contains("chunked"),
                _ => {}
            }
        }
        let body = if chunked { chunks(&mut input)? } else { exactly(&mut input, length)? };
        Ok(Some(Self { method, path, body }))
    }

    /// The path without what follows a question mark.
    pub(super) fn route(&self) -> &str {
        self.path.split('?').next().unwrap_or_default()
    }
}

fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn exactly(input: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    input.take(length.min(MAX_BODY_BYTES)).read_to_end(&mut body)?;
    Ok(body)
}

fn chunks(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    while (body.len() as u64) < MAX_BODY_BYTES {
        let size = line(input)?;
        let size = size.split(';').next().and_then(|size| u64::from_str_radix(size, 16).ok());
        match size {
            Some(0) | None => break,
            Some(size) => body.extend(exactly(input, size)?),
        }
        line(input)?;
    }
    Ok(body)
}

/// The answer to a request, as it is sent.
#[derive(Debug)]
pub(super) struct Reply {
    stream: TcpStream,
}

impl Reply {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream }
    }

    /// An answer that is known as a whole.
    pub(super) fn whole(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        body: &str,
    ) -> io::Result<()> {
        self.head(status, "application/json", headers, Some(body.len()))?;
        self.bytes(body.as_bytes())
    }

    pub(super) fn json(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        body: &Value,
    ) -> io::Result<()> {
        self.whole(status, headers, &body.to_string())
    }

    /// The head of an answer that comes in events, and ends with the connection.
    pub(super) fn events(&mut self, headers: &[(String, String)]) -> io::Result<()> {
        self.head(200, "text/event-stream", headers, None)
    }

    /// One event, named by its `type`.
    pub(super) fn event(&mut self, data: &Value) -> io::Result<()> {
        let kind = data["type"].as_str().unwrap_or_default();
        self.bytes(format!("event: {kind}\ndata: {data}\n\n").as_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn head(
        &mut self,
        status: u16,
        kind: &str,
        headers: &[(String, String)],
        length: Option<usize>,
    ) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\n");
        head.push_str("connection: close\r\n");
        if let Some(length) = length {
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.bytes(head.as_bytes())
    }
}
