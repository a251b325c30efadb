//! Protocol between the runtime and a container's shim: frames of a type, a length and data.

/// Frame type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameType {
    /// Data for the container's stdin.
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
    /// Exit of the container; the data is its exit code in decimal digits.
    Exit = 3,
    /// New size of the terminal: columns and rows, two bytes each.
    Resize = 4,
    CloseStdin = 5,
    /// Requests container output from now on.
    Attach = 6,
    /// The log file was rotated; reopen it.
    Reopen = 7,
    Done = 8,
    Failed = 9,
}

impl FrameType {
    const ALL: [Self; 10] = [
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Exit,
        Self::Resize,
        Self::CloseStdin,
        Self::Attach,
        Self::Reopen,
        Self::Done,
        Self::Failed,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameType,
    pub data: Vec<u8>,
}

/// A malformed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed shim frame")]
pub struct Malformed;

/// Limit of the data in one frame.
pub const LARGEST: usize = 64 << 10;
const HEAD: usize = 5;

/// Appends a frame; data that is too long becomes several.
pub fn put(out: &mut Vec<u8>, kind: FrameType, data: &[u8]) {
    let mut rest = data;
    loop {
        let (part, more) = rest.split_at(rest.len().min(LARGEST));
        out.push(kind as u8);
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(0).to_be_bytes());
        out.extend_from_slice(part);
        rest = more;
        if rest.is_empty() {
            break;
        }
    }
}

/// Removes the first complete frame from the received bytes, if there is one.
pub fn take(incoming: &mut Vec<u8>) -> Result<Option<Frame>, Malformed> {
    let Some(head) = incoming.first_chunk::<HEAD>() else { return Ok(None) };
    let kind = *FrameType::ALL.get(usize::from(head[0])).ok_or(Malformed)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > LARGEST {
        return Err(Malformed);
    }
    if incoming.len() < HEAD + length {
        return Ok(None);
    }
    let data = incoming[HEAD..HEAD + length].to_vec();
    incoming.drain(..HEAD + length);
    Ok(Some(Frame { kind, data }))
}

/// Columns and rows of a [`FrameType::Resize`].
#[must_use]
pub fn size(data: &[u8]) -> Option<(u16, u16)> {
    let [c1, c2, r1, r2] = *data else { return None };
    Some((u16::from_be_bytes([c1, c2]), u16::from_be_bytes([r1, r2])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_split_and_oversized_are_parsed() {
        let mut wire = Vec::new();
        put(&mut wire, FrameType::Stdout, b"hello");
        put(&mut wire, FrameType::Done, b"");
        put(&mut wire, FrameType::Stdin, &vec![7; LARGEST + 1]);
        let mut incoming = wire[..3].to_vec();
        assert_eq!(take(&mut incoming), Ok(None));
        incoming.extend_from_slice(&wire[3..]);
        let mut seen = Vec::new();
        while let Some(frame) = take(&mut incoming).unwrap() {
            seen.push((frame.kind, frame.data.len()));
        }
        assert_eq!(
            seen,
            [
                (FrameType::Stdout, 5),
                (FrameType::Done, 0),
                (FrameType::Stdin, LARGEST),
                (FrameType::Stdin, 1)
            ]
        );
        assert_eq!(take(&mut vec![99, 0, 0, 0, 0]), Err(Malformed));
        assert_eq!(take(&mut vec![0, 255, 0, 0, 0]), Err(Malformed));
        for (at, kind) in FrameType::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }
}
