//! Incremental decoding. A token may contain part of a character, so bytes are buffered until the character is
//! complete.

use std::str::from_utf8;

use crate::Tokenizer;

/// Converts tokens to text one at a time. The concatenated output equals that of [`Tokenizer::decode`] for all tokens.
///
/// It buffers at most three bytes and allocates nothing; only the caller's `String` may grow.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    /// The beginning of a character.
    pending: [u8; 4],
    len: usize,
    /// The text is empty so far: a space there was added by the tokenizer.
    at_start: bool,
    /// See [`Tokenizer::replaces_each_byte`].
    each_byte: bool,
}

impl StreamDecoder {
    /// Decodes from the start of a text.
    pub fn new() -> StreamDecoder {
        StreamDecoder { pending: [0; 4], len: 0, at_start: true, each_byte: false }
    }

    /// Decodes the continuation of a text, such as the answer to a prompt: a leading space is kept.
    pub fn continuing() -> StreamDecoder {
        StreamDecoder { at_start: false, ..StreamDecoder::new() }
    }

    /// Appends the characters that this token completes.
    pub fn push<T: Tokenizer + ?Sized>(&mut self, tokenizer: &T, id: u32, out: &mut String) {
        self.each_byte = tokenizer.replaces_each_byte();
        let mut bytes = tokenizer.token_bytes(id).unwrap_or_default();
        if self.at_start {
            let first = tokenizer.first_bytes(id).unwrap_or_default();
            // A control token adds nothing, wherever it is.
            let has_begun = !first.is_empty() || !bytes.is_empty() && !tokenizer.skips_leading_spaces();
            (self.at_start, bytes) = (!has_begun, first);
        }
        self.push_bytes(bytes, out);
    }

    /// The same for bytes from another source.
    pub fn push_bytes(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.len > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return };
            self.pending[self.len] = byte;
            match from_utf8(&self.pending[..self.len + 1]) {
                Ok(character) => {
                    out.push_str(character);
                    self.len = 0;
                    bytes = rest;
                }
                Err(error) if error.error_len().is_none() => {
                    self.len += 1;
                    bytes = rest;
                }
                // The new byte does not continue the buffered character, which is invalid; the byte itself may be
                // valid.
                Err(_) => {
                    self.replace(self.len, out);
                    self.len = 0;
                }
            }
        }
        while !bytes.is_empty() {
            let error = match from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            out.push_str(from_utf8(valid).unwrap_or_default());
            match error.error_len() {
                Some(broken) => {
                    self.replace(broken, out);
                    bytes = &rest[broken..];
                }
                None => {
                    self.pending[..rest.len()].copy_from_slice(rest);
                    self.len = rest.len();
                    return;
                }
            }
        }
    }

    /// Appends U+FFFD for these invalid bytes.
    fn replace(&self, bytes: usize, out: &mut String) {
        let count = if self.each_byte { bytes } else { bytes.min(1) };
        out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
    }

    /// Ends the text: buffered bytes of an incomplete character become U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        self.replace(self.len, out);
        *self = StreamDecoder::new();
    }

    /// Buffered bytes of an incomplete character.
    pub fn pending(&self) -> &[u8] {
        &self.pending[..self.len]
    }
}

impl Default for StreamDecoder {
    fn default() -> StreamDecoder {
        StreamDecoder::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that are often part of multi-byte characters.
    fn byte() -> impl Strategy<Value = u8> {
        prop_oneof![any::<u8>(), 0x80..=0xbfu8, Just(0xe2), Just(0xf0), Just(0xed), Just(0xf4), Just(b'a')]
    }

    proptest! {
        #[test]
        fn bytes_in_pieces_give_the_whole_text(
            bytes in proptest::collection::vec(byte(), 0..40),
            sizes in proptest::collection::vec(0usize..6, 0..40),
        ) {
            let (mut decoder, mut out, mut rest) = (StreamDecoder::new(), String::new(), &bytes[..]);
            for size in sizes.into_iter().chain([bytes.len()]) {
                let (piece, later) = rest.split_at(size.min(rest.len()));
                decoder.push_bytes(piece, &mut out);
                prop_assert!(decoder.pending().len() <= 3);
                rest = later;
            }
            decoder.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_character_is_shown_when_its_last_byte_comes() {
        let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
        for &byte in &"𝄞".as_bytes()[..3] {
            decoder.push_bytes(&[byte], &mut out);
            assert_eq!(out, "");
        }
        decoder.push_bytes(&"𝄞!".as_bytes()[3..], &mut out);
        assert_eq!(out, "𝄞!");
        decoder.push_bytes(&[0xe2, 0x82], &mut out);
        decoder.finish(&mut out);
        assert_eq!(out, "𝄞!\u{fffd}");
    }
}
