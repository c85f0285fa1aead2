//! The page of `profile --html`: one file without other resources. Its charts are static SVG with colours in attributes,
//! so that it shows them also where its style and script are blocked. All text is escaped; the script adds none.

use std::fmt::Write;

use super::{Line, sum, without_layer};
use crate::commands::ceilings::CeilingsReport;
use crate::output::printable;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// SHA-256 of both in base64, for the content security policy.
const STYLE_HASH: &str = "1Qdmslcswcak8865AwG04f8WJ6WmVRanD43QcJ9zgXs=";
const SCRIPT_HASH: &str = "tYMI3cEiF4wXM5Kf2GOAND/VAdL4LCC/EXb789j1W+8=";

/// Colours of a light page, for viewers that ignore styles.
const FILLS: [&str; 8] =
    ["#8fb8de", "#f0b67f", "#9fd3a6", "#e39aa6", "#c3aee0", "#f1dc85", "#84cfcb", "#c9cbc4"];
/// Units of the charts' coordinates.
const WIDTH: f64 = 1200.0;

/// What the page shows.
#[derive(Debug)]
pub struct Page<'a> {
    pub model: &'a str,
    /// Names and values for its head.
    pub facts: Vec<(&'static str, String)>,
    /// All commands in order.
    pub commands: &'a [Line],
    pub ceilings: Option<&'a CeilingsReport>,
}

/// Text for use in HTML, also within quotes.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

fn micros(ns: u64) -> String {
    format!("{:.1} µs", ns as f64 / 1e3)
}

impl Page<'_> {
    pub fn html(&self) -> String {
        let model = escaped(self.model);
        let facts: String = self
            .facts
            .iter()
            .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value)))
            .collect();
        let labels = self.labels();
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             script-src 'sha256-{SCRIPT_HASH}'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none'\"/>\n\
             <title>Profile of {model}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <h1>Profile of {model}</h1>\n<dl>\n{facts}</dl>\n\
             <h2>Time by layer and command</h2>\n\
             <p>From left to right in the order of the pass. A click enlarges a layer, and one on the top row shows \
             all.</p>\n{}\
             <h2>Time by label, summed over layers</h2>\n{}\
             <h2>Roofline</h2>\n{}\
             <h2>Commands</h2>\n{}\
             <script>{SCRIPT}</script>\n</body>\n</html>\n",
            self.flame(&labels),
            self.bars(&labels),
            self.roofline(&labels),
            self.table(),
        )
    }

    fn total_ns(&self) -> u64 {
        self.commands.iter().map(|command| command.ns).sum()
    }

    /// Sums over layers by label, the slowest first. Those after the seventh share a colour.
    fn labels(&self) -> Vec<Line> {
        let mut labels: Vec<Line> = Vec::new();
        for command in self.commands {
            let label = without_layer(&command.label);
            match labels.iter_mut().find(|sum| sum.label == label) {
                Some(sum) => sum.add(command),
                None => labels.push(Line { label, ..command.clone() }),
            }
        }
        labels.sort_by_key(|label| std::cmp::Reverse(label.ns));
        labels
    }

    fn flame(&self, labels: &[Line]) -> String {
        const ROW: f64 = 26.0;
        let total = self.total_ns();
        let scale = WIDTH / total.max(1) as f64;
        let frame = |kind: &str,
                     row: usize,
                     from: u64,
                     ns: u64,
                     names: [&str; 2],
                     title: &str,
                     colour: usize| {
            const CHARACTER: f64 = 7.3;
            let (x, width, y) = (from as f64 * scale, ns as f64 * scale, row as f64 * ROW);
            let fits = |name: &&&str| name.chars().count() as f64 * CHARACTER + 8.0 <= width;
            format!(
                "<g class=\"{kind}\" data-from=\"{from}\" data-ns=\"{ns}\" data-name=\"{}\" data-short=\"{}\">\
                 <title>{}</title><rect class=\"k{colour}\" fill=\"{}\" x=\"{x:.2}\" y=\"{y}\" \
                 width=\"{width:.2}\" height=\"{ROW}\"/><text x=\"{:.2}\" y=\"{}\">{}</text></g>\n",
                escaped(names[0]),
                escaped(names[1]),
                escaped(title),
                FILLS[colour],
                x + 4.0,
                y + 17.0,
                escaped(names.iter().find(fits).copied().unwrap_or_default()),
            )
        };
        let share = |ns: u64| format!("{}, {:.1}%", micros(ns), 100.0 * ns as f64 / total.max(1) as f64);
        let mut svg = format!(
            "<svg class=\"flame\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Time of each command\">\n",
            3.0 * ROW
        );
        svg += &frame("all", 0, 0, total, ["pass", ""], &format!("pass: {}", share(total)), 7);
        let mut from = 0;
        for part in self.commands.chunk_by(|a, b| group(&a.label) == group(&b.label)) {
            let ns = part.iter().map(|command| command.ns).sum();
            let name = part.first().map_or("", |command| group(&command.label));
            let short = name.rsplit('.').next().unwrap_or_default();
            svg += &frame("group", 1, from, ns, [name, short], &format!("{name}: {}", share(ns)), 7);
            from += ns;
        }
        let mut from = 0;
        for command in self.commands {
            let Line { label, kernel, ns, .. } = command;
            let title = format!("{label}: {}, {kernel}", share(*ns));
            let name = label.strip_prefix(group(label)).and_then(|rest| rest.strip_prefix('.'));
            svg +=
                &frame("command", 2, from, *ns, [name.unwrap_or(label), ""], &title, colour(labels, label));
            from += ns;
        }
        svg + "</svg>\n"
    }

    fn bars(&self, labels: &[Line]) -> String {
        const ROW: f64 = 24.0;
        const NAMES: f64 = 260.0;
        const NUMBERS: f64 = 330.0;
        let slowest = labels.first().map_or(0, |label| label.ns).max(1) as f64;
        let total = self.total_ns().max(1) as f64;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Time of each label\">\n",
            ROW * labels.len() as f64 + 8.0
        );
        for (row, label) in labels.iter().enumerate() {
            let y = row as f64 * ROW + 6.0;
            let width = label.ns as f64 / slowest * (WIDTH - NAMES - NUMBERS);
            let colour = colour(labels, &label.label);
            let plural = if label.calls == 1 { "" } else { "s" };
            let share = 100.0 * label.ns as f64 / total;
            let mut told = format!("{}, {share:.1}%, {} call{plural}", micros(label.ns), label.calls);
            if label.floor > 0.0 {
                let _ = write!(told, ", {:.0}% of ceiling", 100.0 * label.of_ceiling());
            }
            let _ = writeln!(
                svg,
                "<text x=\"8\" y=\"{:.1}\">{}</text><rect class=\"k{colour}\" fill=\"{}\" x=\"{NAMES}\" y=\"{y}\" \
                 width=\"{width:.1}\" height=\"{}\"/><text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                y + 14.0,
                escaped(&label.label),
                FILLS[colour],
                ROW - 6.0,
                NAMES + width + 8.0,
                y + 14.0,
                escaped(&told),
            );
        }
        svg + "</svg>\n"
    }

    /// Operations per second over operations per byte, both logarithmic, below the measured ceilings.
    fn roofline(&self, labels: &[Line]) -> String {
        let drawn: Vec<(&Line, f64, f64)> = self
            .commands
            .iter()
            .filter(|c| c.ns > 0 && c.cost.bytes() > 0 && c.cost.ops() > 0)
            .map(|c| (c, c.cost.ops() as f64 / c.cost.bytes() as f64, c.per_ns(c.cost.ops())))
            .collect();
        let left_out = self.commands.len() - drawn.len();
        let mut text = match self.ceilings {
            Some(_) => "<p>A command on the rising line is limited by the bandwidth of memory, and one on a level line by \
                        the multiplications; the distance to the lines is what a faster kernel could gain.",
            None => "<p>The ceilings of this device are not measured.",
        }
        .to_string();
        if left_out > 0 {
            let _ =
                write!(text, " {left_out} commands whose bytes or operations are not counted are not shown.");
        }
        text += "</p>\n";
        if drawn.is_empty() {
            return text;
        }
        let axes = Axes::new(&drawn, self.ceilings);
        let mut svg = axes.grid();
        if let Some(ceilings) = self.ceilings {
            svg += &axes.roofs(ceilings);
        }
        for (command, x, y) in drawn {
            let Line { label, kernel, .. } = command;
            let title = format!("{label}: {y:.1} GOP/s at {x:.2} operations a byte, {kernel}");
            let colour = colour(labels, label);
            let _ = writeln!(
                svg,
                "<circle class=\"k{colour}\" fill=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"><title>{}</title></circle>",
                FILLS[colour],
                axes.x(x),
                axes.y(y),
                escaped(&title)
            );
        }
        format!(
            "{text}<svg class=\"roofline\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Roofline\">\n{svg}\
             </svg>\n"
        )
    }

    fn table(&self) -> String {
        let total = self.total_ns().max(1) as f64;
        let mut html = "<div class=\"scroll\">\n<table>\n<thead>\n<tr>".to_string();
        let numbers = ["µs", "share", "MB", "GB/s", "GOP/s", "operations a byte", "of ceiling"];
        html += "<th scope=\"col\">#</th><th scope=\"col\" class=\"text\">label</th>";
        html += "<th scope=\"col\" class=\"text\">kernel</th>";
        html.extend(numbers.map(|name| format!("<th scope=\"col\">{name}</th>")));
        html += "</tr>\n</thead>\n<tbody>\n";
        let known = |value: f64, digits: usize| match value {
            0.0 => "<td></td>".to_string(),
            _ => format!("<td data-value=\"{value}\">{value:.digits$}</td>"),
        };
        let percent = |value: f64| format!("<td data-value=\"{value}\">{:.1}%</td>", 100.0 * value);
        for (number, command) in self.commands.iter().enumerate() {
            let Line { label, kernel, ns, cost, .. } = command;
            let (bytes, ops) = (cost.bytes() as f64, cost.ops() as f64);
            html += &format!(
                "<tr><td data-value=\"{number}\">{number}</td><td class=\"text\">{}</td><td class=\"text\">{}</td>",
                escaped(label),
                escaped(kernel)
            );
            html += &format!("<td data-value=\"{ns}\">{:.1}</td>", *ns as f64 / 1e3);
            html += &percent(*ns as f64 / total);
            html += &known(bytes / 1e6, 3);
            html += &known(command.per_ns(cost.bytes()), 2);
            html += &known(command.per_ns(cost.ops()), 1);
            html += &known(if bytes > 0.0 { ops / bytes } else { 0.0 }, 2);
            html +=
                &if command.floor > 0.0 { percent(command.of_ceiling()) } else { "<td></td>".to_string() };
            html += "</tr>\n";
        }
        let all = sum(self.commands);
        let _ = write!(
            html,
            "</tbody>\n<tfoot>\n<tr><td></td><td class=\"text\">total</td><td></td><td>{:.1}</td><td>100.0%</td>\
             <td>{:.3}</td><td>{:.2}</td><td>{:.1}</td><td></td><td></td></tr>\n</tfoot>\n</table>\n</div>\n",
            all.ns as f64 / 1e3,
            all.cost.bytes() as f64 / 1e6,
            all.per_ns(all.cost.bytes()),
            all.per_ns(all.cost.ops()),
        );
        html
    }
}

/// The layer of a label, `layer.3` of `layer.3.attention`; the whole label outside of layers.
fn group(label: &str) -> &str {
    let mut end = 0;
    for part in label.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &label[..end];
        }
        end += 1;
    }
    label
}

fn colour(labels: &[Line], label: &str) -> usize {
    let label = without_layer(label);
    labels.iter().position(|sum| sum.label == label).unwrap_or(FILLS.len()).min(FILLS.len() - 1)
}

const HEIGHT: f64 = 460.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;

/// Logarithmic axes: exponents of ten at their ends.
struct Axes {
    x: [f64; 2],
    y: [f64; 2],
}

impl Axes {
    fn new(drawn: &[(&Line, f64, f64)], ceilings: Option<&CeilingsReport>) -> Axes {
        let mut xs: Vec<f64> = drawn.iter().map(|(_, x, _)| *x).collect();
        let mut ys: Vec<f64> = drawn.iter().map(|(_, _, y)| *y).collect();
        if let Some(c) = ceilings {
            // Where the ceilings meet.
            xs.extend([c.int8_gop_s / c.read_gb_s, c.f32_gop_s / c.read_gb_s]);
            ys.extend([c.int8_gop_s, c.f32_gop_s]);
        }
        let ends = |values: &[f64]| {
            let logs = || values.iter().map(|value| value.log10()).filter(|log| log.is_finite());
            let low = logs().fold(f64::MAX, f64::min).floor();
            [low, logs().fold(f64::MIN, f64::max).ceil().max(low + 1.0)]
        };
        Axes { x: ends(&xs), y: ends(&ys) }
    }

    fn x(&self, value: f64) -> f64 {
        let [low, high] = self.x;
        LEFT + (value.log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    }

    /// At most as low as the axis.
    fn y(&self, value: f64) -> f64 {
        let [low, high] = self.y;
        let part = ((value.log10() - low) / (high - low)).max(0.0);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }

    fn grid(&self) -> String {
        let mut svg = String::new();
        let powers = |[low, high]: [f64; 2]| (low as i32..=high as i32).map(|power| 10f64.powi(power));
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let line = |x1: f64, y1: f64, x2: f64, y2: f64| {
            format!(
                "<line class=\"axis\" stroke=\"#dcd9d1\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
            )
        };
        for value in powers(self.x) {
            let x = self.x(value);
            svg += &line(x, TOP, x, bottom);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
                bottom + 18.0
            );
        }
        for value in powers(self.y) {
            let y = self.y(value);
            svg += &line(LEFT, y, right, y);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">operations a byte</text>\
             <text class=\"faint\" x=\"8\" y=\"14\">GOP/s</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 10.0
        );
        svg
    }

    fn roofs(&self, ceilings: &CeilingsReport) -> String {
        let CeilingsReport { read_gb_s, int8_gop_s, f32_gop_s, .. } = *ceilings;
        let [low, high] = self.x.map(|power| 10f64.powf(power));
        let mut svg = String::new();
        for (class, peak, name) in [("roof", int8_gop_s, "int8"), ("roof second", f32_gop_s, "f32")] {
            let ridge = (peak / read_gb_s).clamp(low, high);
            // Where the rising line enters the chart.
            let start = (10f64.powf(self.y[0]) / read_gb_s).clamp(low, ridge);
            let points = [start, ridge, high].map(|x| {
                let y = (read_gb_s * x).min(peak);
                format!("{:.1},{:.1}", self.x(x), self.y(y))
            });
            let _ = writeln!(
                svg,
                "<polyline class=\"{class}\" fill=\"none\" stroke=\"#1e1f1c\" points=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}: {peak:.0} GOP/s</text>",
                points.join(" "),
                WIDTH - RIGHT - 6.0,
                self.y(peak) - 6.0,
            );
        }
        let middle = 10f64.powf((self.x[0] + (int8_gop_s / read_gb_s).log10().min(self.x[1])) / 2.0);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{read_gb_s:.1} GB/s</text>",
            self.x(middle) - 8.0,
            self.y(read_gb_s * middle) - 6.0
        );
        svg
    }
}

#[cfg(test)]
mod tests {
    use akunu::Cost;
    use sha2::{Digest, Sha256};

    use super::*;

    /// Pairs of start and end tags match, attributes are quoted, and text has no stray `<` or `&`. Returns the names of all
    /// elements.
    fn elements(html: &str) -> Vec<String> {
        let (mut open, mut all) = (Vec::<String>::new(), Vec::new());
        let mut rest = html.strip_prefix("<!doctype html>").unwrap();
        while let Some(at) = rest.find('<') {
            check_text(&rest[..at]);
            let tag = &rest[at + 1..];
            let end = tag.find('>').unwrap();
            let (inside, after) = (&tag[..end], &tag[end + 1..]);
            rest = after;
            if let Some(name) = inside.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
                continue;
            }
            let (inside, is_empty) =
                inside.strip_suffix('/').map_or((inside, false), |inside| (inside, true));
            let (name, mut attributes) = inside.split_once(' ').unwrap_or((inside, ""));
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
            while !attributes.is_empty() {
                let (key, value) = attributes.split_once("=\"").unwrap();
                assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{key}");
                let (value, after) = value.split_once('"').unwrap();
                check_text(value);
                assert!(!key.starts_with("on"), "{key}");
                attributes = after.trim_start();
            }
            all.push(name.to_string());
            if name == "script" || name == "style" {
                let end = format!("</{name}>");
                rest = &rest[rest.find(&end).unwrap() + end.len()..];
            } else if !is_empty {
                open.push(name.to_string());
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
        all
    }

    fn check_text(text: &str) {
        assert!(!text.contains('>'), "{text}");
        for (at, _) in text.match_indices('&') {
            let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
            assert!(known.iter().any(|entity| text[at..].starts_with(entity)), "{text}");
        }
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }

    fn command(label: &str, kernel: &str, ns: u64, bytes: u64) -> Line {
        let cost = Cost { weight_bytes: bytes, int8_ops: 2 * bytes, ..Cost::default() };
        Line { label: label.into(), kernel: kernel.into(), calls: 1, ns, cost, floor: bytes as f64 / 20.0 }
    }

    fn ceilings() -> CeilingsReport {
        CeilingsReport {
            isa: "avx2",
            threads: 2,
            working_set: 1 << 20,
            read_gb_s: 20.0,
            int8_gop_s: 400.0,
            f32_gop_s: 100.0,
        }
    }

    fn commands() -> Vec<Line> {
        let layer = |n: usize| {
            [
                command(&format!("layer.{n}.attention"), "attention_f16", 1000 + n as u64, 3000),
                command(&format!("layer.{n}.norm"), "rms_norm", 10, 0),
            ]
        };
        let layers = (0..12).flat_map(layer);
        [command("embed", "embed_q8_0", 5, 100)].into_iter().chain(layers).collect()
    }

    fn count(all: &[String], name: &str) -> usize {
        all.iter().filter(|found| *found == name).count()
    }

    #[test]
    fn every_command_is_in_each_chart_and_in_the_table_once() {
        let (commands, ceilings) = (commands(), ceilings());
        let facts = vec![("device", "cpu".to_string())];
        let page = Page { model: "m", facts, commands: &commands, ceilings: Some(&ceilings) };
        let html = page.html();
        let all = elements(&html);
        assert_eq!(count(&all, "tr"), commands.len() + 2);
        let frames: Vec<&str> = html.split("<g class=\"command\"").skip(1).collect();
        assert_eq!(frames.len(), commands.len());
        // Embedding and layers.
        assert_eq!(html.matches("<g class=\"group\"").count(), 13);
        // Norms have no counted bytes.
        assert_eq!(count(&all, "circle"), 13);
        for (Line { label, ns, .. }, frame) in commands.iter().zip(frames) {
            assert_eq!(html.matches(&format!("<td class=\"text\">{label}</td>")).count(), 1, "{label}");
            assert!(frame.contains(&format!("<title>{label}: {},", micros(*ns))), "{frame}");
        }
        assert!(html.contains("int8: 400 GOP/s") && html.contains("12 commands whose bytes"), "{html}");
        let without = Page { ceilings: None, facts: vec![], ..page }.html();
        assert_eq!(count(&elements(&without), "polyline"), 0);
        let empty = Page { model: "", facts: vec![], commands: &[], ceilings: None }.html();
        assert_eq!(count(&elements(&empty), "circle"), 0);
    }

    #[test]
    fn hostile_names_stay_text() {
        let evil = "</script></title><img src=x onerror=alert(1)>\"'&amp;\u{1b}[2J\u{202e}\0";
        let mut commands = commands();
        commands.push(command(evil, evil, 7, 1000));
        let (ceilings, plain) = (ceilings(), self::commands());
        let page = Page {
            model: evil,
            facts: vec![("device", evil.to_string())],
            commands: &commands,
            ceilings: Some(&ceilings),
        };
        let html = page.html();
        let all = elements(&html);
        let usual =
            Page { model: "m", facts: vec![("device", "cpu".into())], commands: &plain, ..page }.html();
        let usual = elements(&usual);
        assert_eq!(count(&all, "img"), 0);
        assert_eq!(count(&all, "script"), 1);
        assert_eq!(count(&all, "tr"), count(&usual, "tr") + 1);
        assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;amp;\\u{1b}[2J"), "{html}");
    }

    #[test]
    fn the_policy_has_the_hashes_of_the_style_and_the_script() {
        let page = Page { model: "m", facts: vec![], commands: &commands(), ceilings: None }.html();
        for (name, policy) in [("style", "style-src"), ("script", "script-src")] {
            let (_, rest) = page.split_once(&format!("<{name}>")).unwrap();
            let (content, _) = rest.split_once(&format!("</{name}>")).unwrap();
            let hash = base64(&Sha256::digest(content));
            assert!(page.contains(&format!("{policy} 'sha256-{hash}'")), "the hash of the {name} is {hash}");
        }
    }

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for part in bytes.chunks(3) {
            let number = (0..3).fold(0, |number, i| number << 8 | usize::from(*part.get(i).unwrap_or(&0)));
            let digits = (0..4).map(|i| char::from(DIGITS[number >> (18 - 6 * i) & 63]));
            text.extend(digits.take(part.len() + 1).chain(std::iter::repeat_n('=', 3 - part.len())));
        }
        text
    }

    #[test]
    fn layers_are_groups_of_labels() {
        let groups = ["layer.3.attention", "embed", "output.norm", "layer.10", "a..7.b"].map(group);
        assert_eq!(groups, ["layer.3", "embed", "output.norm", "layer.10", "a..7"]);
    }
}
