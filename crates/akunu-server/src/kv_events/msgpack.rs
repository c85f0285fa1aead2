//! The part of MessagePack that events are written in.

/// Appends values to a message.
#[derive(Debug, Default)]
pub(super) struct Packer(pub(super) Vec<u8>);

impl Packer {
    fn bytes(&mut self, first: u8, rest: &[u8]) {
        self.0.push(first);
        self.0.extend_from_slice(rest);
    }

    pub(super) fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(super) fn float(&mut self, value: f64) {
        self.bytes(0xcb, &value.to_be_bytes());
    }

    pub(super) fn integer(&mut self, value: u64) {
        if let Ok(value) = u8::try_from(value) {
            match value {
                0..0x80 => self.0.push(value),
                _ => self.bytes(0xcc, &[value]),
            }
        } else if let Ok(value) = u16::try_from(value) {
            self.bytes(0xcd, &value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.bytes(0xce, &value.to_be_bytes());
        } else {
            self.bytes(0xcf, &value.to_be_bytes());
        }
    }

    /// The head of a list, before its values.
    pub(super) fn list(&mut self, len: usize) {
        match len {
            0..16 => self.0.push(0x90 | len as u8),
            16..0x1_0000 => self.bytes(0xdc, &(len as u16).to_be_bytes()),
            _ => self.bytes(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    /// The head of a map, before its names and values.
    pub(super) fn map(&mut self, len: u8) {
        self.0.push(0x80 | len & 15);
    }

    pub(super) fn integers(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        self.list(values.len());
        values.for_each(|value| self.integer(value));
    }

    /// A text of at most 255 bytes.
    pub(super) fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(0xff)];
        self.bytes(0xd9, &[text.len() as u8]);
        self.0.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lists_have_the_shortest_form() {
        let mut packer = Packer::default();
        packer.integers([0, 127, 128, 255, 256, 0xffff, 0x1_0000, u64::from(u32::MAX), 1 << 32].into_iter());
        let expected: &[u8] = &[
            0x99, 0, 0x7f, 0xcc, 0x80, 0xcc, 0xff, 0xcd, 1, 0, 0xcd, 0xff, 0xff, 0xce, 0, 1, 0, 0, 0xce,
            0xff, 0xff, 0xff, 0xff, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        assert_eq!(packer.0, expected);
        for (len, head) in [(15, &[0x9f][..]), (16, &[0xdc, 0, 16]), (0x1_0000, &[0xdd, 0, 1, 0, 0])] {
            let mut packer = Packer::default();
            packer.list(len);
            assert_eq!(packer.0, head);
        }
        let mut packer = Packer::default();
        packer.float(1.5);
        packer.text("ab");
        packer.nil();
        assert_eq!(packer.0, [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xd9, 2, b'a', b'b', 0xc0]);
    }
}
