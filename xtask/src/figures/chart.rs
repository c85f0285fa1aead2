//! Speeds beside peers: a bar chart, and the table of README.md.

use std::fmt::Write;

use anyhow::{Context, Result, bail};

use super::escaped;

/// A row of the measurements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Speed {
    machine: String,
    model: String,
    dtype: String,
    test: String,
    engine: String,
    tok_s: f64,
}

pub(super) fn parse(csv: &str) -> Result<Vec<Speed>> {
    let lines = csv.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| row(line).with_context(|| format!("not a measurement: {line}"))).collect()
}

fn row(line: &str) -> Result<Speed> {
    let cells: Vec<&str> = line.split(',').collect();
    let [machine, model, dtype, test, engine, tok_s] = cells[..] else { bail!("{} cells", cells.len()) };
    let [machine, model, dtype, test, engine] = [machine, model, dtype, test, engine].map(str::to_string);
    Ok(Speed { machine, model, dtype, test, engine, tok_s: tok_s.parse()? })
}

const ENGINES: [(&str, &str); 3] =
    [("akunu", "#1f6feb"), ("llama.cpp", "#9aa4af"), ("ik_llama.cpp", "#cfd6dd")];

/// What the chart shows, all of one machine.
const CHART: (&str, &[(&str, &str)]) = (
    "zen5",
    &[
        ("smollm2-135m", "Q4_0"),
        ("qwen3-0.6b", "Q4_0"),
        ("qwen3-0.6b", "Q4_K_M"),
        ("qwen3-0.6b", "Q6_K"),
        ("qwen3-0.6b", "Q8_0"),
        ("qwen3-0.6b", "F16"),
        ("tinyllama-1.1b", "Q4_0"),
        ("tinyllama-1.1b", "Q4_K_M"),
        ("tinyllama-1.1b", "Q8_0"),
    ],
);

/// What the table shows: a machine, how it is called, and its test of generation.
const TABLE: [(&str, &str, &str); 2] = [("zen5", "EPYC (Zen 5)", "tg64"), ("amx", "Xeon (AMX)", "tg128")];
const TABLE_MODELS: [(&str, &str); 4] = [
    ("smollm2-135m", "Q4_0"),
    ("qwen3-0.6b", "Q4_0"),
    ("tinyllama-1.1b", "Q4_0"),
    ("tinyllama-1.1b", "Q4_K_M"),
];

fn find(speeds: &[Speed], place: [&str; 5]) -> Option<f64> {
    let is_it =
        |s: &&Speed| [&s.machine, &s.model, &s.dtype, &s.test, &s.engine].map(String::as_str) == place;
    speeds.iter().find(is_it).map(|speed| speed.tok_s)
}

pub(super) fn table(speeds: &[Speed]) -> Result<String> {
    let mut table =
        "| machine | model | generated: Akunu | llama.cpp | ik_llama.cpp | prompt: Akunu | llama.cpp \
                     | ik_llama.cpp |\n|---|---|---|---|---|---|---|---|\n"
            .to_string();
    for (machine, name, generation) in TABLE {
        for (model, dtype) in TABLE_MODELS {
            write!(table, "| {name} | {model} {dtype} |")?;
            for test in [generation, "pp512"] {
                for (engine, _) in ENGINES {
                    let cell = find(speeds, [machine, model, dtype, test, engine]).map(number);
                    write!(table, " {} |", cell.unwrap_or_default())?;
                }
            }
            table.push('\n');
        }
    }
    Ok(table)
}

/// `1,234`, `139`, or `38.5`.
fn number(value: f64) -> String {
    match value {
        1000.0.. => format!("{},{:03}", (value / 1000.0).trunc(), value.round() % 1000.0),
        100.0.. => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

const BAR: f64 = 13.0;
const GROUP: f64 = 3.0 * BAR + 13.0;
const LABELS: f64 = 150.0;
const PANEL: f64 = 310.0;
const TOP: f64 = 74.0;

/// Bars relative to llama.cpp, with tokens a second at their ends.
pub(super) fn svg(speeds: &[Speed]) -> Result<String> {
    let (machine, models) = CHART;
    let (width, height) = (LABELS + 2.0 * PANEL + 10.0, TOP + models.len() as f64 * GROUP + 14.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-label=\"Speed of Akunu, llama.cpp and ik_llama.cpp\">\n<style>\n\
         text {{ font: 12px system-ui, sans-serif; fill: #1f2328; }}\n.title {{ font-weight: bold; }}\n\
         .end {{ text-anchor: end; }}\n.value {{ font-size: 10.5px; }}\n</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#ffffff\" stroke=\"#d1d9e0\"/>\n"
    );
    let mut x = LABELS;
    for (engine, colour) in ENGINES {
        writeln!(svg, "<rect x=\"{x:.0}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{colour}\"/>")?;
        writeln!(svg, "<text x=\"{:.0}\" y=\"24\">{}</text>", x + 17.0, escaped(engine))?;
        x += 110.0;
    }
    for (number, (model, dtype)) in models.iter().enumerate() {
        let y = TOP + number as f64 * GROUP + 1.5 * BAR + 4.0;
        writeln!(svg, "<text x=\"{:.0}\" y=\"{y:.0}\" class=\"end\">{model} {dtype}</text>", LABELS - 10.0)?;
    }
    let panels =
        [("generation, tokens a second", "tg64"), ("prompt of 512 tokens, tokens a second", "pp512")];
    for (column, (title, test)) in panels.into_iter().enumerate() {
        panel(&mut svg, speeds, LABELS + column as f64 * PANEL, (title, machine, test), models)?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn panel(
    svg: &mut String,
    speeds: &[Speed],
    left: f64,
    (title, machine, test): (&str, &str, &str),
    models: &[(&str, &str)],
) -> Result<()> {
    let speed = |model, dtype, engine| {
        find(speeds, [machine, model, dtype, test, engine])
            .with_context(|| format!("no measurement of {model} {dtype} {test} with {engine}"))
    };
    let mut most = 0.0f64;
    for (model, dtype) in models {
        most = most.max(speed(model, dtype, "akunu")? / speed(model, dtype, "llama.cpp")?);
    }
    // Room for the numbers at the ends of bars.
    let scale = (PANEL - 50.0) / most;
    writeln!(svg, "<text x=\"{left:.0}\" y=\"52\" class=\"title\">{title}</text>")?;
    writeln!(
        svg,
        "<text x=\"{left:.0}\" y=\"67\" class=\"value\">length of bars: relative to llama.cpp</text>"
    )?;
    for (number_of, (model, dtype)) in models.iter().enumerate() {
        let unit = speed(model, dtype, "llama.cpp")?;
        for (place, (engine, colour)) in ENGINES.into_iter().enumerate() {
            let value = speed(model, dtype, engine)?;
            let (y, length) = (TOP + number_of as f64 * GROUP + place as f64 * BAR, value / unit * scale);
            writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>",
                BAR - 2.0
            )?;
            writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"value\">{}</text>",
                left + length + 4.0,
                y + BAR - 3.5,
                number(value)
            )?;
        }
    }
    Ok(())
}
