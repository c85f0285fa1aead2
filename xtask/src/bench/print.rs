//! Prints the table, and profiles of the slowest rows.

use std::path::PathBuf;

use anyhow::Result;

use super::programs::Akunu;
use super::row::{Report, Row};

/// Number of profiles that are printed.
const WORST: usize = 3;

const TITLES: [&str; 12] = [
    "model",
    "type",
    "threads",
    "test",
    "median",
    "min",
    "max",
    "of ceiling",
    "read GB/s",
    "int8 GOP/s",
    "llama-bench",
    "baseline",
];

/// Markdown, for use in docs.
pub(super) fn table(report: &Report, before: Option<&Report>, margin: f64) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "{}: {}, {} cores, {}; {}, commit {}\n",
        machine.kind, machine.cpu, machine.cores, machine.isa, report.date, report.commit
    );
    match before {
        Some(before) => text += &format!("baseline: {}, commit {}\n", before.date, before.commit),
        None => text += "no baseline for this kind of machine (--baseline creates one)\n",
    }
    text += &format!("\n| {} |\n|{}\n", TITLES.join(" | "), "---|".repeat(TITLES.len()));
    for row in &report.rows {
        text += &format!("| {} |\n", cells(row, before.and_then(|b| b.row(row)), margin).join(" | "));
    }
    text
}

fn cells(row: &Row, before: Option<&Row>, margin: f64) -> [String; 12] {
    let optional =
        |value: Option<f64>, digits: usize| value.map_or(String::new(), |v| format!("{v:.digits$}"));
    let number = |value: f64| if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    let peer = row.peer.map_or(String::new(), |peer| format!("{} ({:.2}×)", number(peer), row.value / peer));
    let change = before.map_or(String::new(), |before| {
        let mark = if row.is_worse(before, margin) { " **slower**" } else { "" };
        format!("{:+.0}%{mark}", 100.0 * (row.value / before.value - 1.0))
    });
    [
        row.model.clone(),
        row.quant.clone(),
        row.threads.to_string(),
        row.test.clone(),
        format!("{} {}", number(row.value), row.unit.name()),
        number(row.min),
        number(row.max),
        row.of_ceiling.map_or(String::new(), |part| format!("{:.0}%", 100.0 * part)),
        optional(row.read_gb_s, 1),
        optional(row.int8_gop_s, 0),
        peer,
        change,
    ]
}

/// Rows that are slower than the baseline.
pub(super) fn worse<'a>(rows: &'a [Row], before: &'a Report, margin: f64) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| before.row(row).is_some_and(|before| row.is_worse(before, margin)))
}

/// Profiles of the rows that are farthest from their ceilings.
pub(super) fn worst(
    akunu: &Akunu,
    rows: &[Row],
    models: &[(String, String, PathBuf)],
    threads: usize,
) -> Result<()> {
    // Profiles exist for a decode step or a prompt. Other thread counts would give similar profiles.
    let profiled = |row: &&Row| row.of_ceiling.is_some() && !row.test.contains('@') && row.threads == threads;
    let mut rows: Vec<&Row> = rows.iter().filter(profiled).collect();
    rows.sort_by(|a, b| a.of_ceiling.unwrap_or(1.0).total_cmp(&b.of_ceiling.unwrap_or(1.0)));
    for row in rows.into_iter().take(WORST) {
        let same =
            |(shape, quant, _): &&(String, String, PathBuf)| *shape == row.model && *quant == row.quant;
        let Some((_, _, file)) = models.iter().find(same) else { continue };
        let threads = row.threads.to_string();
        let test = row.test.strip_prefix("pp").map_or(vec![], |tokens| vec!["-p", tokens]);
        let profile = akunu.profile(file, &[&test[..], &["-r", "5", "-t", &threads]].concat())?;
        say!("{} {}, {} threads, {}:\n\n{profile}", row.model, row.quant, row.threads, row.test);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::row::Unit;
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn a_line_has_peer_and_change_and_marks_slower_rows() {
        let before = row("tg128", Unit::TokensPerSecond, 200.0, Some(0.8));
        let mut now = row("tg128", Unit::TokensPerSecond, 150.0, Some(0.6));
        (now.peer, now.read_gb_s) = (Some(60.0), Some(31.26));
        let line = cells(&now, Some(&before), 0.1).join(" | ");
        assert_eq!(
            line,
            "m | Q4_0 | 2 | tg128 | 150 tok/s | 150 | 150 | 60% | 31.3 |  | 60.0 (2.50×) | -25% **slower**"
        );
        assert_eq!(cells(&now, None, 0.1)[11], "");
        assert_eq!(cells(&now, Some(&before), 0.3)[11], "-25%");
    }
}
