//! Standard streams of a command, or buffers in their place.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;

/// A stream that a command writes to. Clones share it.
#[derive(Clone)]
pub struct Output(Arc<Mutex<dyn Write + Send>>);

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Output")
    }
}

impl Output {
    pub fn new(target: Arc<Mutex<dyn Write + Send>>) -> Self {
        Self(target)
    }

    /// Writes bytes as they are. A closed pipe ends the output, not the command.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let mut target = self.0.lock();
        let _ = target.write_all(bytes).and_then(|()| target.flush());
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub fn line(&mut self, text: &str) {
        self.bytes(format!("{text}\n").as_bytes());
    }
}

/// Standard streams of a command.
#[derive(Clone, Debug)]
pub struct Io {
    pub out: Output,
    pub err: Output,
    /// Content of standard input; read from the process if nothing is given.
    pub input: Option<Vec<u8>>,
}

impl Io {
    /// The streams of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let out = Output::new(Arc::new(Mutex::new(std::io::stdout())));
        Self { out, err: Output::new(Arc::new(Mutex::new(std::io::stderr()))), input: None }
    }

    /// Buffers, with the content of standard input.
    #[must_use]
    pub fn buffers(input: &str) -> (Self, Buffer, Buffer) {
        let (out, err) = (Buffer::default(), Buffer::default());
        let io = Self {
            out: Output::new(Arc::clone(&out.0) as Arc<Mutex<dyn Write + Send>>),
            err: Output::new(Arc::clone(&err.0) as Arc<Mutex<dyn Write + Send>>),
            input: Some(input.as_bytes().to_vec()),
        };
        (io, out, err)
    }

    /// All of standard input, up to `limit` bytes.
    pub fn read_input(&self, limit: u64) -> std::io::Result<Vec<u8>> {
        if let Some(input) = &self.input {
            return Ok(input.clone());
        }
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// True if standard input is a terminal.
    #[must_use]
    pub fn input_is_terminal(&self) -> bool {
        self.input.is_none() && std::io::stdin().is_terminal()
    }
}

/// Bytes that a command wrote.
#[derive(Clone, Debug, Default)]
pub struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}
