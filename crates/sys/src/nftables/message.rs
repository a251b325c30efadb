//! Netlink messages as bytes: headers, attributes, nests.

/// Writes consecutive messages.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

const NESTED: u16 = 0x8000;

impl Writer {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a message with the netfilter header; `body` writes its attributes.
    pub fn message(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        family: u8,
        resource: u16,
        body: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        body(self);
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = (value.len() + 4) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    pub fn text(&mut self, kind: u16, value: &str) {
        let length = (value.len() + 5) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    pub fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub fn long(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        body(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
