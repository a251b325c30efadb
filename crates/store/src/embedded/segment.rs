//! Layout of a log segment, and its parser.
//!
//! A segment is a preallocated file: a header, then frames, then old contents (zeros, or the remains of an older
//! segment whose file was reused). One frame is one batch of one commit, written with one write and followed by one
//! sync, and the next frame is only written after that sync. So a crash can damage at most the last frame; a damaged
//! frame followed by another frame is corruption, and is never treated as the end of the log.
//!
//! Frame headers carry a checksum salted with the segment's own random number and their offset: remains of older
//! segments, or values that look like frames, are not mistaken for frames of this one.

use std::ops::Range;

use super::record::Reader;

/// Bytes of a segment's header.
pub(super) const HEADER: usize = 64;
/// Bytes of a frame's header.
pub(super) const FRAME: usize = 24;
/// Frames start at multiples of this.
const ALIGN: usize = 8;
/// Offset in a segment's header of the note that another segment was started after it.
pub(super) const ROTATION_NOTE: usize = 44;
const ROTATED: u32 = 0x5854_4e46;
const MAGIC: &[u8; 8] = b"FERRYLOG";
const VERSION: u32 = 1;
const FRAME_MAGIC: u32 = 0x4d52_4646;

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Segments are numbered without gaps.
    pub number: u64,
    /// Random, new each time the file is used.
    pub salt: u64,
    /// Index of the segment's first frame.
    pub first_index: u64,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.salt.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_index.to_le_bytes());
        let crc = crc32c::crc32c(&out[..40]);
        out[40..44].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if the header is damaged or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.get(..HEADER)?);
        let magic = reader.take(8)?;
        let version = reader.u32()?;
        let _reserved = reader.u32()?;
        let header = Self { number: reader.u64()?, salt: reader.u64()?, first_index: reader.u64()? };
        let sound = reader.u32()? == crc32c::crc32c(&bytes[..40]);
        (sound && magic == MAGIC && version == VERSION).then_some(header)
    }

    /// The note that another segment was started after this one, at [`ROTATION_NOTE`]. It has a checksum of its own, salted
    /// as that of frames.
    pub fn rotation_note(&self) -> [u8; 8] {
        let mut note = [0; 8];
        note[..4].copy_from_slice(&ROTATED.to_le_bytes());
        let crc = self.header_crc(ROTATION_NOTE, &ROTATED.to_le_bytes());
        note[4..].copy_from_slice(&crc.to_le_bytes());
        note
    }

    /// Reports whether the segment's bytes carry the note.
    pub fn is_rotated(&self, bytes: &[u8]) -> bool {
        bytes.get(ROTATION_NOTE..ROTATION_NOTE + 8) == Some(&self.rotation_note()[..])
    }

    fn header_crc(&self, offset: usize, header: &[u8]) -> u32 {
        let seed = crc32c::crc32c(&self.salt.to_le_bytes());
        let seed = crc32c::crc32c_append(seed, &(offset as u64).to_le_bytes());
        crc32c::crc32c_append(seed, header)
    }

    /// Fills in the header of a frame whose payload follows it in `frame`, and pads it.
    pub fn seal(&self, frame: &mut Vec<u8>, offset: usize, index: u64) {
        let payload = &frame[FRAME..];
        let (length, crc) = (payload.len() as u32, crc32c::crc32c(payload));
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
        frame[8..16].copy_from_slice(&index.to_le_bytes());
        let header_crc = self.header_crc(offset, &frame[..16]);
        frame[16..20].copy_from_slice(&header_crc.to_le_bytes());
        frame[20..24].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        frame.resize(frame.len().next_multiple_of(ALIGN), 0);
    }

    /// The frame header at this offset, if there is one: index, payload checksum, payload range.
    fn frame_at(&self, bytes: &[u8], offset: usize) -> Option<(u64, u32, Range<usize>)> {
        let header = bytes.get(offset..offset + FRAME)?;
        if header[20..24] != FRAME_MAGIC.to_le_bytes() {
            return None;
        }
        let mut reader = Reader(header);
        let (length, crc, index) = (reader.u32()? as usize, reader.u32()?, reader.u64()?);
        let sound = reader.u32()? == self.header_crc(offset, &header[..16]);
        sound.then_some((index, crc, offset + FRAME..(offset + FRAME).checked_add(length)?))
    }
}

/// Result of scanning a segment.
#[derive(Debug)]
pub(super) struct Scan {
    /// Payloads of the sound frames, in order.
    pub frames: Vec<Range<usize>>,
    /// Offset of the next frame.
    pub end: usize,
    /// A frame was started at `end` and is incomplete.
    pub torn: bool,
    /// A frame header follows after `end`: the data at `end` had been made durable and is damaged.
    pub damaged: Option<usize>,
}

/// Finds the frames of a segment.
pub(super) fn scan(header: &SegmentHeader, bytes: &[u8]) -> Scan {
    let mut scan = Scan { frames: Vec::new(), end: HEADER, torn: false, damaged: None };
    let mut index = header.first_index;
    while let Some((found, crc, payload)) = header.frame_at(bytes, scan.end) {
        let sound = found == index && bytes.get(payload.clone()).is_some_and(|p| crc32c::crc32c(p) == crc);
        if !sound {
            scan.torn = true;
            break;
        }
        scan.end = payload.end.next_multiple_of(ALIGN);
        scan.frames.push(payload);
        index += 1;
    }
    scan.damaged = (scan.end + ALIGN..bytes.len().saturating_sub(FRAME - 1))
        .step_by(ALIGN)
        .find(|offset| header.frame_at(bytes, *offset).is_some());
    scan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(payloads: &[&[u8]]) -> (SegmentHeader, Vec<u8>) {
        let header = SegmentHeader { number: 3, salt: 99, first_index: 10 };
        let mut bytes = header.encode().to_vec();
        for (nth, payload) in payloads.iter().enumerate() {
            let mut frame = vec![0; FRAME];
            frame.extend_from_slice(payload);
            header.seal(&mut frame, bytes.len(), 10 + nth as u64);
            bytes.extend_from_slice(&frame);
        }
        (header, bytes)
    }

    #[test]
    fn record_with_a_flipped_bit_is_rejected() {
        let (header, bytes) = segment(&[b"first", b"second one", b"third"]);
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        let sound = scan(&header, &bytes);
        assert_eq!((sound.frames.len(), sound.end, sound.torn, sound.damaged), (3, bytes.len(), false, None));
        let third = sound.frames[2].start - FRAME;
        for bit in HEADER * 8..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = scan(&header, &flipped);
            let padding =
                sound.frames.iter().any(|f| (f.end..f.end.next_multiple_of(ALIGN)).contains(&(bit / 8)));
            if padding {
                assert_eq!(found.frames.len(), 3);
            } else if bit / 8 < third {
                assert!(found.damaged.is_some(), "bit {bit}");
            } else {
                assert_eq!((found.frames.len(), found.damaged), (2, None), "bit {bit}");
            }
        }
        for bit in 0..HEADER * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = SegmentHeader::decode(&flipped);
            // Bytes after the checksum are reserved.
            assert!(found.is_none() || bit / 8 >= 44, "bit {bit}");
        }
    }

    #[test]
    fn remains_of_an_older_segment_are_not_frames() {
        let (_, mut bytes) = segment(&[b"first", b"second one", b"third"]);
        let again = SegmentHeader { number: 4, salt: 100, first_index: 13 };
        bytes[..HEADER].copy_from_slice(&again.encode());
        let found = scan(&again, &bytes);
        assert_eq!((found.frames.len(), found.end, found.torn, found.damaged), (0, HEADER, false, None));
    }
}
