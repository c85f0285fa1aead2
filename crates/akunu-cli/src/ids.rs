//! Token ids as users write them: `1,2,3`, with or without spaces.

use crate::failure::Failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

/// A clap value parser.
pub fn parse(text: &str) -> Result<Ids, String> {
    let mut ids = Vec::new();
    let separator = |c: char| c == ',' || c.is_whitespace() || c == '[' || c == ']';
    for word in text.split(separator).filter(|word| !word.is_empty()) {
        match word.parse() {
            Ok(id) => ids.push(id),
            Err(_) => return Err(format!("\"{word}\" is not a token id (a number from 0 to {})", u32::MAX)),
        }
    }
    Ok(Ids(ids))
}

/// For text from a file or stdin.
pub fn from_text(text: &str) -> Result<Vec<u32>, Failure> {
    parse(text).map(|ids| ids.0).map_err(Failure::new)
}

pub fn listed(ids: &[u32]) -> String {
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_split_at_commas_and_spaces() {
        assert_eq!(parse("1,2 3,\n 4"), Ok(Ids(vec![1, 2, 3, 4])));
        assert_eq!(parse("[1, 2]"), Ok(Ids(vec![1, 2])));
        assert!(parse("1,x").is_err());
        assert!(parse("-1").is_err());
    }
}
