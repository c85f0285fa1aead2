//! Bars of characters: parts of a whole, and shares.

use crate::grid::facts;

/// The characters of bars.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// One for each part of a stacked bar. The first is also that of shares.
    fills: [char; 4],
    free: char,
    limit: char,
}

impl Style {
    pub const ASCII: Style = Style { fills: ['#', '=', '+', '-'], free: '.', limit: '|' };
    pub const BLOCKS: Style = Style { fills: ['█', '▓', '▒', '░'], free: '·', limit: '│' };

    /// Blocks on a terminal that shows them, otherwise ASCII.
    pub fn of_stdout() -> Style {
        if crate::output::shows_blocks() { Style::BLOCKS } else { Style::ASCII }
    }

    /// A bar of at most `cells` characters for a share from 0 to 1; what is not 0 has at least one.
    pub fn share(self, share: f64, cells: usize) -> String {
        let filled = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
        let least = usize::from(share > 0.0);
        self.fills[0].to_string().repeat(filled.max(least).min(cells))
    }
}

/// Amounts of memory beside what is available.
#[derive(Debug)]
pub struct MemoryBar {
    pub parts: [(&'static str, u64); 4],
    pub available: Option<u64>,
}

/// Width of a bar without its brackets, if the terminal allows it.
const CELLS: usize = 70;

impl MemoryBar {
    fn total(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The bar, and a line for each part that is not empty. If the parts are larger than what is available, a mark in the
    /// bar shows where that ends.
    pub fn render(&self, style: Style, width: Option<usize>) -> String {
        let cells = width.map_or(CELLS, |width| width.saturating_sub(2).clamp(4, CELLS));
        let total = self.total();
        let whole = self.available.unwrap_or(total).max(total).max(1);
        let mut bar = String::new();
        for (fill, count) in style.fills.iter().zip(cells_of(&self.parts.map(|(_, b)| b), whole, cells)) {
            bar.extend(std::iter::repeat_n(fill, count));
        }
        let used = bar.chars().count();
        bar.extend(std::iter::repeat_n(style.free, cells - used));
        let mut legend: Vec<(String, String)> = Vec::new();
        for (fill, (name, bytes)) in style.fills.iter().zip(self.parts).filter(|(_, part)| part.1 > 0) {
            legend.push((format!("{fill} {name}"), akunu::human(bytes)));
        }
        match self.available {
            Some(available) if available < total => {
                let at = (available as f64 / whole as f64 * cells as f64) as usize;
                bar = bar.chars().take(at).chain([style.limit]).chain(bar.chars().skip(at + 1)).collect();
                legend.push((format!("{} available", style.limit), akunu::human(available)));
            }
            Some(available) => legend.push((format!("{} free", style.free), akunu::human(available - total))),
            None => {}
        }
        let legend: Vec<(&str, String)> = legend.iter().map(|(name, n)| (&name[..], n.clone())).collect();
        format!("[{bar}]\n{}", facts(&legend, width))
    }
}

/// Cells of each part, in proportion to its size, and at least one for a part that is not empty; `cells` is at least the
/// number of parts. Parts that fill the whole fill all cells.
fn cells_of(parts: &[u64], whole: u64, cells: usize) -> Vec<usize> {
    let place = |bytes: u64| (bytes as f64 / whole as f64 * cells as f64).round() as usize;
    let mut before = 0;
    let count = |&bytes: &u64| {
        let start = place(before);
        before += bytes;
        (place(before) - start).max(usize::from(bytes > 0))
    };
    let mut counts: Vec<usize> = parts.iter().map(count).collect();
    while counts.iter().sum::<usize>() > cells
        && let Some(largest) = counts.iter_mut().max()
    {
        *largest -= 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["weights", "KV cache", "activations", "other"];

    fn bar(bytes: [u64; 4], available: Option<u64>) -> MemoryBar {
        MemoryBar { parts: std::array::from_fn(|i| (NAMES[i], bytes[i])), available }
    }

    #[test]
    fn parts_are_drawn_in_proportion_and_no_part_vanishes() {
        assert_eq!(cells_of(&[50, 25, 1, 0], 100, 20), [10, 5, 1, 0]);
        assert_eq!(cells_of(&[u64::MAX - 2, 1, 1], u64::MAX, 10), [8, 1, 1]);
        assert_eq!(cells_of(&[1, 1, 1, 1], 4, 4), [1, 1, 1, 1]);
        assert_eq!(cells_of(&[1, 1, 1], 3, 10).iter().sum::<usize>(), 10);
        let text = bar([8 << 30, 4 << 30, 1 << 30, 0], Some(16 << 30)).render(Style::ASCII, Some(18));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "[########====+...]");
        assert_eq!(lines[1], "# weights      8.00 GiB");
        assert_eq!(lines[4], ". free         3.00 GiB");
        assert_eq!(lines.len(), 5, "{text}");
    }

    #[test]
    fn a_mark_shows_where_the_available_memory_ends() {
        let text = bar([6 << 30, 2 << 30, 0, 0], Some(4 << 30)).render(Style::BLOCKS, Some(22));
        assert!(text.starts_with("[██████████│████▓▓▓▓▓]\n"), "{text}");
        assert!(text.contains("│ available  4.00 GiB"), "{text}");
        let unknown = bar([3, 1, 0, 0], None).render(Style::ASCII, Some(10));
        assert!(unknown.starts_with("[######==]\n") && !unknown.contains("free"), "{unknown}");
    }

    #[test]
    fn narrow_terminals_get_short_lines() {
        let text = bar([6 << 30, 2 << 30, 5, 5], Some(4 << 30)).render(Style::BLOCKS, Some(30));
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
        assert!(bar([1, 1, 1, 1], Some(9)).render(Style::ASCII, Some(1)).starts_with("[#=+-]"));
    }

    #[test]
    fn shares_have_at_least_one_cell_unless_they_are_nothing() {
        let share = |share| Style::ASCII.share(share, 10);
        assert_eq!([share(0.0), share(0.001), share(0.5), share(7.0)], ["", "#", "#####", "##########"]);
    }
}
