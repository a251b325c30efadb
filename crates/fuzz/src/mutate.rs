//! Mutations of inputs: bytes, and structure where that is cheap.

/// A small random number generator (SplitMix64), deterministic for a seed on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    pub fn one_of<'t, T: ?Sized>(&mut self, list: &[&'t T]) -> &'t T {
        list[self.below(list.len())]
    }
}

/// Limit of inputs after most mutations; repetition and nesting occasionally exceed it.
const USUAL: usize = 4096;
const LONGEST: usize = 64 << 10;

/// Brackets in the supported formats.
const NESTS: &[(&[u8], &[u8])] = &[
    (b"[", b"]"),
    (b"{\"a\":", b"}"),
    (b"(", b")"),
    (b"- ", b""),
    (b"\x81", b""),
    (b"\xa1\x61a", b""),
    (b"\xc1", b""),
    (b"!", b""),
    (b"{a: ", b"}"),
];

const NUMBERS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"1e308",
    b"1e-400",
    b"1e999999999",
    b"0.0000000000000000000000001",
    b"-0",
    b"NaN",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x10",
    b"\x7f\xff\xff\xff",
    b"\x1b\x7f\xff\xff\xff\xff\xff\xff\xff",
];

/// Applies one to four mutations to `input`. `others` are inputs to copy pieces from, `dictionary` the target's tokens.
pub fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], dictionary: &[&[u8]], random: &mut Random) {
    for _ in 0..=random.below(4) {
        one(input, others, dictionary, random);
    }
    let most = if random.below(64) == 0 { LONGEST } else { USUAL };
    input.truncate(most);
}

/// A range of the input of at most `most` bytes.
fn range(input: &[u8], most: usize, random: &mut Random) -> std::ops::Range<usize> {
    if input.is_empty() {
        return 0..0;
    }
    let start = random.below(input.len());
    let length = 1 + random.below(most.min(input.len() - start));
    start..start + length
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

fn one(input: &mut Vec<u8>, others: &[Vec<u8>], dictionary: &[&[u8]], random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(12) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = [0, 1, 0x7f, 0x80, 0xff, b'"', b'\\', b'\n'][random.below(8)];
            }
        }
        2 => {
            let bytes = random.next().to_le_bytes();
            insert(input, at, &bytes[..=random.below(7)]);
        }
        3 => {
            let gone = range(input, 32, random);
            input.drain(gone);
        }
        4 => {
            let piece = input[range(input, 64, random)].to_vec();
            insert(input, at, &piece);
        }
        5 => {
            // Repeats a piece many times.
            let piece = input[range(input, 16, random)].to_vec();
            let times = 1 << random.below(9);
            insert(input, at, &piece.repeat(times));
        }
        6 => {
            let other = &others[random.below(others.len())];
            let piece = other[range(other, 256, random)].to_vec();
            let replaced = range(input, 64, random);
            input.splice(replaced, piece);
        }
        7 => {
            let inner = range(input, 64, random);
            let (open, close) = NESTS[random.below(NESTS.len())];
            let times = 1 << random.below(10);
            insert(input, inner.end, &close.repeat(times));
            insert(input, inner.start, &open.repeat(times));
        }
        8 => {
            let replaced = range(input, 8, random);
            input.splice(replaced, random.one_of(NUMBERS).iter().copied());
        }
        9 | 10 if !dictionary.is_empty() => insert(input, at, random.one_of(dictionary)),
        11 => input.truncate(at),
        _ => {
            let replaced = range(input, 16, random);
            if let Some(token) = (!dictionary.is_empty()).then(|| random.one_of(dictionary)) {
                input.splice(replaced, token.iter().copied());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_the_same_for_a_seed() {
        let made = |seed: u64| {
            let (mut random, corpus) = (Random::new(seed), [b"{\"a\":[1,2]}".to_vec(), Vec::new()]);
            let mut all = Vec::new();
            for index in 0..1000 {
                let mut input = corpus[index % 2].clone();
                mutate(&mut input, &corpus, &[b"true"], &mut random);
                assert!(input.len() <= LONGEST);
                all.push(input);
            }
            all
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }
}
