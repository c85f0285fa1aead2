//! The byte-to-character mapping of byte-level BPE. Every byte is written as a printable character, so that vocabulary
//! files contain no control characters or invalid UTF-8: `Ġ` is a space, `Ċ` a newline, and most of ASCII is unchanged.

/// Bytes that are written as themselves; the others are numbered from U+0100 in order.
const fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Number of bytes that are written as characters from U+0100 on.
const SHIFTED: usize = 256 - (0x7e - 0x21 + 1) - (0xac - 0xa1 + 1) - (0xff - 0xae + 1);

static BYTE_OF_SHIFTED: [u8; SHIFTED] = {
    let mut bytes = [0; SHIFTED];
    let (mut byte, mut count) = (0usize, 0);
    while byte < 256 {
        if !is_itself(byte as u8) {
            bytes[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    bytes
};

fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => Some(byte).filter(|&byte| is_itself(byte)),
        Err(_) => BYTE_OF_SHIFTED.get((c as usize).checked_sub(0x100)?).copied(),
    }
}

/// Appends the bytes that `text` encodes. Text with other characters (tokens that were added manually) is appended
/// unchanged.
pub(crate) fn append_bytes(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

static CHAR_OF_BYTE: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut byte = 0;
    while byte < 256 {
        chars[byte] = byte as u8 as char;
        byte += 1;
    }
    let mut shifted = 0;
    while shifted < SHIFTED {
        if let Some(c) = char::from_u32(0x100 + shifted as u32) {
            chars[BYTE_OF_SHIFTED[shifted] as usize] = c;
        }
        shifted += 1;
    }
    chars
};

/// The text that encodes these bytes.
pub(crate) fn written(bytes: &[u8]) -> String {
    let mut text = String::new();
    push_written(bytes, &mut text);
    text
}

pub(crate) fn push_written(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| CHAR_OF_BYTE[byte as usize]));
}

/// Whether every character of `text` encodes a byte.
pub(crate) fn is_written_in_bytes(text: &str) -> bool {
    text.chars().all(|c| byte_of(c).is_some())
}

/// The byte of a SentencePiece byte token such as `<0x0A>`.
pub(crate) fn byte_of_hex(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if plain { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_written_by_one_character() {
        let written: Vec<u8> = ('\0'..='\u{143}').filter_map(byte_of).collect();
        let mut sorted = written.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('\u{144}'), None);
        assert!((0..=255).all(|byte| byte_of(CHAR_OF_BYTE[byte as usize]) == Some(byte)));
        let bytes = |text: &str| {
            let mut out = Vec::new();
            append_bytes(text, &mut out);
            out
        };
        assert_eq!(bytes("ĠtheĊ"), b" the\n");
        assert_eq!(bytes("Ã©"), "é".as_bytes());
        assert_eq!(bytes("<｜end▁of▁sentence｜>"), "<｜end▁of▁sentence｜>".as_bytes());
    }

    #[test]
    fn byte_tokens_are_hexadecimal() {
        assert_eq!(byte_of_hex("<0x0A>"), Some(10));
        assert_eq!(byte_of_hex("<0xff>"), Some(255));
        for text in ["<0x+A>", "<0x0>", "<0x000>", "0x0A", "<0x0A", "<0x€>"] {
            assert_eq!(byte_of_hex(text), None, "{text}");
        }
    }
}
