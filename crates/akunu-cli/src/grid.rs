//! Text tables that fit narrow terminals. Cells and values are shown on one line, with control characters escaped.

use crate::output::printable;

/// Minimum width of a truncated column; below it, each row becomes a separate block.
const MIN_WIDTH: usize = 8;
const GAP: &str = "  ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

#[derive(Debug)]
struct Column {
    title: &'static str,
    align: Align,
    shrink: Shrink,
}

/// What happens to a column if the terminal is too narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shrink {
    Whole,
    /// Truncated in the middle, since both ends of a tensor's name matter.
    Truncate,
    /// Omitted.
    Omit,
}

#[derive(Debug, Default)]
pub struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub fn new() -> Grid {
        Grid::default()
    }

    /// A column of text that may be truncated.
    pub fn text(self, title: &'static str) -> Grid {
        self.column(title, Align::Left, Shrink::Truncate)
    }

    /// A column of text that may be omitted.
    pub fn spare(self, title: &'static str) -> Grid {
        self.column(title, Align::Left, Shrink::Omit)
    }

    /// A column of short words, never truncated.
    pub fn word(self, title: &'static str) -> Grid {
        self.column(title, Align::Left, Shrink::Whole)
    }

    pub fn number(self, title: &'static str) -> Grid {
        self.column(title, Align::Right, Shrink::Whole)
    }

    fn column(mut self, title: &'static str, align: Align, shrink: Shrink) -> Grid {
        self.columns.push(Column { title, align, shrink });
        self
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.cells(&cells);
    }

    /// As [`Grid::row`], for tables whose columns depend on something.
    pub fn cells(&mut self, cells: &[String]) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// The width of the table; `None` if it would be unreadable, so that each row becomes a block.
    pub fn width(&self, terminal: Option<usize>) -> Option<usize> {
        self.widths(terminal).map(|widths| total(&widths))
    }

    /// The table with its titles, with a newline after each line; `width`: columns of the terminal.
    pub fn render(&self, width: Option<usize>) -> String {
        let Some(widths) = self.widths(width) else { return self.as_blocks(width.unwrap_or(usize::MAX)) };
        let titles = self.columns.iter().map(|c| c.title.to_string()).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let cells: Vec<String> = widths.iter().map(|&(i, width)| self.cell(i, &row[i], width)).collect();
            text.push_str(cells.join(GAP).trim_end());
            text.push('\n');
        }
        text
    }

    /// The columns to show and their widths; `None` if the table would be unreadable.
    fn widths(&self, limit: Option<usize>) -> Option<Vec<(usize, usize)>> {
        let mut widths: Vec<(usize, usize)> = (0..self.columns.len()).map(|i| (i, self.natural(i))).collect();
        let limit = limit.unwrap_or(usize::MAX);
        if total(&widths) > limit {
            widths.retain(|&(i, _)| self.columns[i].shrink != Shrink::Omit);
        }
        while total(&widths) > limit {
            let least = |i: usize| MIN_WIDTH.max(self.columns[i].title.chars().count());
            let cuttable = widths
                .iter_mut()
                .filter(|(i, w)| self.columns[*i].shrink == Shrink::Truncate && *w > least(*i));
            cuttable.max_by_key(|(_, width)| *width)?.1 -= 1;
        }
        Some(widths)
    }

    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(self.columns[column].title.chars().count())
    }

    fn cell(&self, column: usize, text: &str, width: usize) -> String {
        let text = cut_middle(text, width);
        match self.columns[column].align {
            Align::Left => format!("{text:<width$}"),
            Align::Right => format!("{text:>width$}"),
        }
    }

    /// One block per row, for terminals too narrow for a table.
    fn as_blocks(&self, width: usize) -> String {
        let titles = self.columns.iter().map(|c| c.title.chars().count()).max().unwrap_or(0);
        let limit = width.saturating_sub(titles + 1).max(MIN_WIDTH);
        let mut text = String::new();
        for row in &self.rows {
            let columns = self.columns.iter().zip(row);
            for (column, cell) in columns.filter(|(c, cell)| c.shrink != Shrink::Omit && !cell.is_empty()) {
                text.push_str(&format!("{:<titles$} {}\n", column.title, cut_middle(cell, limit)));
            }
            text.push('\n');
        }
        text
    }
}

fn total(widths: &[(usize, usize)]) -> usize {
    widths.iter().map(|(_, width)| width).sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

fn cut_middle(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_string();
    }
    let head = width.saturating_sub(1).div_ceil(2);
    let tail = width.saturating_sub(1) - head;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail)).collect()
}

/// Names and values, one pair per line: `name   value`. Long values are wrapped in their column.
pub fn facts(facts: &[(&str, String)], width: Option<usize>) -> String {
    let names = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + GAP.len();
    let limit = width.map_or(usize::MAX, |width| width.saturating_sub(names).max(2 * MIN_WIDTH));
    let mut text = String::new();
    for (name, value) in facts {
        for (i, line) in wrap(&printable(value), limit).iter().enumerate() {
            let name = if i == 0 { name } else { "" };
            text.push_str(format!("{name:<names$}{line}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// Wraps text between words; a word longer than a line is not split.
fn wrap(text: &str, limit: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.len() - 1;
        let used = lines[line].chars().count();
        if used > 0 && used + 1 + word.chars().count() > limit {
            lines.push(word.to_string());
        } else {
            if used > 0 {
                lines[line].push(' ');
            }
            lines[line].push_str(word);
        }
    }
    lines
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut grid = Grid::new().text("label").number("bytes");
        grid.row(["layer.10.attention.output".into(), "12".into()]);
        grid.row(["embed".into(), "123456".into()]);
        grid
    }

    #[test]
    fn columns_line_up() {
        let expected = "label                       bytes\n\
                        layer.10.attention.output      12\n\
                        embed                      123456\n";
        assert_eq!(grid().render(None), expected);
    }

    #[test]
    fn narrow_terminals_cut_text_in_the_middle_and_leave_numbers_whole() {
        let text = grid().render(Some(20));
        assert!(text.contains("layer.…utput"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 20), "{text}");
        assert_eq!([None, Some(20), Some(10)].map(|width| grid().width(width)), [Some(33), Some(20), None]);
    }

    #[test]
    fn very_narrow_terminals_get_a_block_per_row() {
        assert_eq!(grid().render(Some(10)), "label laye…put\nbytes 12\n\nlabel embed\nbytes 123456\n\n");
    }

    #[test]
    fn optional_columns_are_omitted_first() {
        let mut grid = Grid::new().text("label").spare("what");
        grid.row(["layer.10".into(), "a long explanation".into()]);
        assert!(grid.render(Some(80)).contains("explanation"));
        assert_eq!(grid.render(Some(20)), "label\nlayer.10\n");
    }

    #[test]
    fn long_values_are_wrapped() {
        let text = facts(&[("cpu", "one two three four five six".into())], Some(22));
        assert_eq!(text, "cpu  one two three\n     four five six\n");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
