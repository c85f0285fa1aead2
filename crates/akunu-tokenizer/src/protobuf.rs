//! A minimal protocol buffer reader for `tokenizer.model`: fields in order, with all bounds checked.

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Field<'b> {
    Number(u64),
    /// A string, bytes, or a message.
    Bytes(&'b [u8]),
    /// A 32-bit value: a float or a fixed-size integer.
    Four([u8; 4]),
    Eight,
}

/// The fields of a message: (number, value). Ends after the first error.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'b>(&'b [u8]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'b> Fields<'b> {
    pub(crate) fn of(message: &'b [u8]) -> Fields<'b> {
        Fields(message)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(u32, Field<'b>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => {
                self.0 = self.0.get(8..)?;
                Field::Eight
            }
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(len)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            5 => {
                let (bytes, rest) = self.0.split_first_chunk::<4>()?;
                self.0 = rest;
                Field::Four(*bytes)
            }
            _ => return None,
        };
        Some((u32::try_from(key >> 3).ok()?, value))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u32, Field<'b>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_each_kind_are_read_and_what_is_cut_off_is_broken() {
        let message =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 0, 0, 0x80, 0x3f, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let fields: Vec<_> = Fields::of(&message).map(Result::unwrap).collect();
        let expected = [
            (1, Field::Number(150)),
            (2, Field::Bytes(b"hi")),
            (3, Field::Four(1f32.to_le_bytes())),
            (4, Field::Eight),
        ];
        assert_eq!(fields, expected);
        for broken in [&message[..2], &message[..5], &message[..9], &message[..15], &[0x0b], &[0xff; 12]] {
            assert_eq!(Fields::of(broken).last(), Some(Err(Malformed)), "{broken:?}");
        }
    }
}
