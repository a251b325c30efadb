//! Shuffle sharding: each flow is assigned a fixed small hand of queues. Two flows rarely share a whole hand, so a
//! flow that fills its own queues leaves most other flows at least one queue of their own.

/// Bits of a hash that are available for dealing.
const MAX_ENTROPY_BITS: f64 = 60.0;
/// Largest hand that a deck of two or more cards allows with that many bits.
pub const MAX_HAND: usize = 15;

/// Deals hands of a fixed size from a deck of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealer {
    deck: usize,
    hand: usize,
}

impl Dealer {
    /// `None` if the hash has too few bits for such hands.
    pub fn new(deck: usize, hand: usize) -> Option<Self> {
        let bits = (deck as f64).log2() * hand as f64;
        let fits = (1..=deck).contains(&hand) && deck <= 1 << 26 && bits.ceil() <= MAX_ENTROPY_BITS;
        (fits && hand <= MAX_HAND).then_some(Self { deck, hand })
    }

    /// Cards per hand.
    pub fn hand(self) -> usize {
        self.hand
    }

    /// Deals the hand of a hash: distinct cards, in `cards[..size]`.
    pub fn deal(self, mut hash: u64, cards: &mut [usize; MAX_HAND]) -> usize {
        let mut drawn = [0; MAX_HAND];
        for (at, card) in drawn.iter_mut().enumerate().take(self.hand) {
            let left = (self.deck - at) as u64;
            *card = usize::try_from(hash % left).unwrap_or(0);
            hash /= left;
        }
        // Each draw is an index among the remaining cards; skipping the drawn ones gives the index in the whole deck.
        for at in 0..self.hand {
            let mut card = drawn[at];
            for earlier in (0..at).rev() {
                if card >= drawn[earlier] {
                    card += 1;
                }
            }
            cards[at] = card;
        }
        self.hand
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn dealer_rejects_impossible_hands() {
        for (deck, hand, possible) in
            [(64, 6, true), (128, 8, true), (1, 1, true), (0, 0, false), (4, 5, false), (1 << 16, 8, false)]
        {
            assert_eq!(Dealer::new(deck, hand).is_some(), possible, "{deck} {hand}");
        }
    }

    #[test]
    fn dealt_cards_are_distinct_and_uniform() {
        let dealer = Dealer::new(5, 3).expect("possible");
        let mut seen: HashMap<[usize; 3], usize> = HashMap::new();
        for hash in 0..60 * 7 {
            let mut cards = [0; MAX_HAND];
            assert_eq!(dealer.deal(hash, &mut cards), 3);
            let hand = [cards[0], cards[1], cards[2]];
            assert!(
                hand[0] != hand[1] && hand[1] != hand[2] && hand[0] != hand[2] && hand.iter().all(|c| *c < 5)
            );
            *seen.entry(hand).or_default() += 1;
        }
        assert_eq!(seen.len(), 60);
        assert!(seen.values().all(|count| *count == 7));
    }
}
