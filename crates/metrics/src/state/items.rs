//! Splits a list into its items while it arrives, so that a list of any length takes the memory of one item.

/// Size of an item, at most.
const MAX_ITEM: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ItemsError {
    #[error("the list ended early")]
    Truncated,
    #[error("an item has more than {MAX_ITEM} bytes")]
    TooLarge,
    #[error("the list is not well-formed")]
    Malformed,
}

/// Splitter of the text of a list: a JSON object with one array of objects.
#[derive(Default)]
pub struct Items {
    depth: usize,
    in_array: bool,
    in_text: bool,
    is_escaped: bool,
    item: Vec<u8>,
    is_item: bool,
}

impl Items {
    /// Reads a piece of the list; `each` gets every item that ends in it.
    pub fn read<E: From<ItemsError>>(
        &mut self,
        piece: &[u8],
        each: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        for (at, byte) in piece.iter().copied().enumerate() {
            if self.in_text {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => {
                    if self.depth == 1 {
                        self.in_array = byte == b'[';
                    }
                    if self.depth == 2 && self.in_array && byte == b'{' {
                        self.is_item = true;
                        from = at;
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.checked_sub(1).ok_or(ItemsError::Malformed)?;
                    if self.is_item && self.depth == 2 {
                        self.keep(&piece[from..=at])?;
                        self.is_item = false;
                        let item = std::mem::take(&mut self.item);
                        each(&item)?;
                        self.item = item;
                        self.item.clear();
                    }
                }
                _ => {}
            }
        }
        if self.is_item {
            self.keep(&piece[from..])?;
        }
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), ItemsError> {
        if self.item.len() + part.len() > MAX_ITEM {
            return Err(ItemsError::TooLarge);
        }
        self.item.extend_from_slice(part);
        Ok(())
    }

    /// Fails if the list is not complete.
    pub fn finish(self) -> Result<(), ItemsError> {
        if self.depth == 0 && !self.in_text { Ok(()) } else { Err(ItemsError::Truncated) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, step: usize) -> Result<Vec<String>, ItemsError> {
        let mut found = Vec::new();
        let mut items = Items::default();
        for piece in text.as_bytes().chunks(step) {
            items.read::<ItemsError>(piece, &mut |item| {
                found.push(String::from_utf8_lossy(item).into_owned());
                Ok(())
            })?;
        }
        items.finish().map(|()| found)
    }

    #[test]
    fn items_are_split_wherever_pieces_end() {
        let items = [r#"{"a":"]}\"{","b":[{"c":{}}]}"#, "{}", r#"{"d":["x"]}"#];
        let list = format!(
            r#"{{"kind":"L","metadata":{{"x":[1],"continue":""}},"items":[{}, {},{}]}}"#,
            items[0], items[1], items[2]
        );
        for step in 1..list.len() + 1 {
            assert_eq!(split(&list, step).expect("well-formed"), items, "{step}");
        }
        assert!(split(r#"{"items":null}"#, 3).expect("well-formed").is_empty());
    }

    #[test]
    fn incomplete_or_malformed_list_fails() {
        assert!(matches!(split(r#"{"items":[{"a":1}"#, 4), Err(ItemsError::Truncated)));
        assert!(matches!(split("}", 1), Err(ItemsError::Malformed)));
    }
}
