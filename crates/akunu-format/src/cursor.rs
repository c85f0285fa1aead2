//! A reader of untrusted bytes: every step is checked, and nothing is allocated.

/// The reason why a value could not be read. Callers that know the name of the key or tensor turn it into a
/// `FormatError`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Short {
        need: u64,
        have: u64,
    },
    /// A count for which the file is too short, even with the smallest elements.
    Count {
        count: u64,
        have: u64,
    },
    /// The header goes on beyond the limit.
    TooLarge,
    /// An array with too many elements.
    Elements(usize),
    Utf8,
    Bool(u8),
    Type(u32),
    Depth,
}

#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// There are more bytes, beyond the limit.
    is_cut: bool,
}

impl<'a> Cursor<'a> {
    /// Reads at most the first `limit` bytes.
    pub(crate) fn new(bytes: &'a [u8], limit: usize) -> Cursor<'a> {
        Cursor { bytes: &bytes[..bytes.len().min(limit)], at: 0, is_cut: bytes.len() > limit }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        let left = self.left();
        match usize::try_from(count) {
            Ok(n) if n <= left => {
                let out = &self.bytes[self.at..self.at + n];
                self.at += n;
                Ok(out)
            }
            _ => Err(self.short(count)),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(self.short(N as u64)),
        }
    }

    fn short(&self, need: u64) -> Fault {
        if self.is_cut { Fault::TooLarge } else { Fault::Short { need, have: self.left() as u64 } }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string: its length in 8 bytes, then UTF-8.
    pub(crate) fn str(&mut self) -> Result<&'a str, Fault> {
        let len = self.u64()?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| Fault::Utf8)
    }

    /// A count of things that take at least `least` bytes each; rejected if the file is too short for them.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, Fault> {
        let count = self.u64()?;
        let have = self.left() as u64;
        if count > have / least as u64 {
            return Err(if self.is_cut { Fault::TooLarge } else { Fault::Count { count, have } });
        }
        Ok(count as usize)
    }
}
