//! Grammars within the limits are converted in time that grows with their size.

use akunu_testing::assert_growth;

use super::to_lark;

/// What is written, how much of it, and a grammar of a size. Eight times as much is nearly what the limits allow.
type Case = (&'static str, usize, fn(usize) -> String);

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

const CASES: [Case; 11] = [
    ("rules", 60, |n| {
        let all: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
        format!("root ::= {}\n{}", all.join(" | "), lines(n, |i| format!("r{i} ::= \"{i}\" [a-z]")))
    }),
    ("a chain of rules", 60, |n| {
        format!("root ::= r0\n{}\nr{n} ::= \"a\"", lines(n, |i| format!("r{i} ::= \"a\" r{}", i + 1)))
    }),
    ("rules that refer to themselves", 30, |n| {
        let all: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
        format!("root ::= {}\n{}", all.join(" | "), lines(n, |i| format!("r{i} ::= \"({i}\" r{i}? \")\"")))
    }),
    ("a sequence", 500, |n| format!("root ::= {}", "[a-z] ".repeat(n))),
    ("alternatives", 300, |n| format!("root ::= \"a\"{}", " | \"b\" [c-d]".repeat(n / 2))),
    ("a literal", 1 << 11, |n| format!("root ::= \"{}\"", "ab ".repeat(n / 3))),
    ("a class", 1 << 7, |n| {
        let char = |i: usize| char::from_u32(0x4e00 + 2 * i as u32).unwrap_or('a');
        format!("root ::= [{}]", (0..n).map(char).collect::<String>())
    }),
    ("repetitions", 300, |n| format!("root ::= {}", "[a-c]* \"x\" ".repeat(n / 3))),
    ("counts", 100, |n| format!("root ::= ([a-c] \"x\"){{1,{n}}}")),
    ("comments", 1 << 12, |n| format!("{}root ::= \"a\"", "# a comment\n".repeat(n / 12))),
    ("white space", 1 << 12, |n| format!("root ::= {}\"a\"", " \n".repeat(n / 2))),
];

#[test]
fn eight_times_the_size_takes_in_proportion() {
    for (what, size, grammar) in CASES {
        let (text, _) = assert_growth(what, size, grammar, |text| to_lark(text).is_ok());
        assert!(to_lark(&text).is_ok(), "{what}: {:?}", to_lark(&text).err());
    }
}
