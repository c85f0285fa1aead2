//! Templates that try to take all memory or time. Each is rendered in a process with little address space.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::{Duration, Instant};

use akunu_jinja::{JinjaError, LocalTime, Template};
use akunu_testing::some_of;

const ADDRESS_SPACE_KIB: u32 = 1280 << 10;
const DEADLINE: Duration = Duration::from_secs(20);

/// Set to the number of an attack in the process that renders it.
const ATTACK: &str = "AKUNU_JINJA_ATTACK";

/// Text of 16 MB, and of 1 MB.
const TEXTS: &str = "{% set t = 'aB' * 8000000 %}{% set u = 'aB' * 500000 %}";

const ATTACKS: &[&str] = &[
    "{% macro m() %}{{ kwargs | length }}{% endmacro %}{% for i in range(1000) %}{{ m(**{t ~ i: i}) }}{% endfor %}",
    "{% set ns = namespace(d={}) %}{% for i in range(1000) %}{% set x = ns.d.update({t ~ i: i}) %}{% endfor %}",
    "{% set ns = namespace(d={t: 1}, l=[]) %}{% for i in range(1000) %}{% set x = ns.l.append(dict(**ns.d)) %}{% endfor %}",
    "{{ ([t, t, t, t] * 100000) | sort | length }}",
    "{{ ([t, t, t, t] * 100000) | sort(case_sensitive=true) | length }}",
    "{{ ([t, t] * 100000) | unique | list | length }}",
    "{{ ([t, t] * 100000) | max | length }}{{ ([t, t] * 100000) | groupby(0) | length }}",
    "{% set l = [] %}{% for i in range(100) %}{% set x = l.append(u ~ i) %}{% endfor %}{{ (l * 1000) | sort | length }}",
    "{{ ({t: t} | dictsort | length) }}{% for i in range(100000) %}{% set x = {t: t} | dictsort %}{% endfor %}",
    "{% set f = '{0}' * 5000000 %}{{ f.format(u) }}",
    "{% set f = '{0:' ~ t ~ '}' %}{% for i in range(100000) %}{% set x = f.format(1) %}{% endfor %}",
    "{% set f = '%(' ~ t ~ ')s' %}{% for i in range(100000) %}{% set x = f % {t: 1} %}{% endfor %}",
    "{% set f = '{:>4096}' * 4000000 %}{{ f.format(1) }}",
    "{% set l = [] %}{% for i in range(1000) %}{% set x = l.append('%' ~ t | urlencode) %}{% endfor %}",
    "{% set e = '<' * 16000000 %}{% set l = [] %}{% for i in range(1000) %}{% set x = l.append(e | escape) %}{% endfor %}",
    "{% set n = '\n' * 16000000 %}{% set l = [] %}{% for i in range(100) %}{% set x = l.append(n.splitlines()) %}{% endfor %}",
    "{% set n = ' a' * 8000000 %}{% set l = [] %}{% for i in range(100) %}{% set x = l.append(n.split()) %}{% endfor %}",
    "{% set n = ' a' * 8000000 %}{% set l = [] %}{% for i in range(100) %}{% set x = l.append(n.split(' ')) %}{% endfor %}",
    "{% set n = '\n' * 16000000 %}{{ n | indent(256, true, true) }}",
    "{% for i in range(100) %}{% set x = t | reverse %}{% endfor %}",
    "{% for c in t %}{% endfor %}",
    "{% set d = {} %}{% set l = [] %}{% for i in range(1000) %}{% set x = l.append(d[t ~ i]) %}{% endfor %}",
    "{{ ('[' ~ '0,' * 8000000 ~ '0]') | from_json | length }}",
    "{% set chars = 'ab' * 128 %}{% for i in range(100000) %}{% set x = t.strip(chars ~ 'AB') %}{% endfor %}",
    "{% set d = dict([1]) if false else {} %}{% for i in range(100000) %}{% set x = d.update({i: i}) %}{% endfor %}{% for i in range(100000) %}{% set x = d.pop(i) %}{% endfor %}",
    "{{ t.center(1000000, t) }}",
    "{{ raise_exception(t) }}",
    "{% set ns = namespace(t=t) %}{% for i in range(100) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = t.upper().title().swapcase() %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = t.endswith((t, t, t, t)) %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = t ~ 'x' in t %}{% endfor %}",
];

#[test]
fn attacks_end_in_time_with_little_memory() {
    if let Ok(number) = std::env::var(ATTACK) {
        let source = format!("{TEXTS}{}", ATTACKS[number.parse::<usize>().unwrap()]);
        let started = Instant::now();
        let result = Template::new(&source).and_then(|t| t.render(&[], LocalTime::from_seconds(0)));
        let shown = match result {
            Ok(output) => format!("{} bytes", output.text.len()),
            Err(JinjaError::Limit(what)) => what.to_string(),
            Err(JinjaError::Raised(message) | JinjaError::Runtime { message, .. }) => {
                assert!(message.len() <= 3 * 4096, "a message of {} bytes", message.len());
                message.chars().take(80).collect()
            }
            Err(error) => panic!("{error:?}"),
        };
        println!("{shown}, after {:?}", started.elapsed());
        return;
    }
    let program = std::env::current_exe().unwrap();
    for (number, attack) in some_of(ATTACKS.iter().enumerate(), 3) {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$@\"")).arg("sh").arg(&program);
        shell.args(["--exact", "attacks_end_in_time_with_little_memory", "--nocapture", "--test-threads=1"]);
        let started = Instant::now();
        let output = shell.env(ATTACK, number.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{attack}: {text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(started.elapsed() < DEADLINE, "{attack}: it took {:?}", started.elapsed());
        println!("{attack}: {}", text.lines().find(|line| line.contains("after")).unwrap_or_default());
    }
}

#[test]
fn nothing_is_rendered_after_the_deadline() {
    let template = Template::new("{{ 1 }}").unwrap();
    let render = |deadline| template.render_until(&[], LocalTime::from_seconds(0), deadline);
    assert_eq!(render(Template::deadline()).unwrap().text, "1");
    let passed = Instant::now();
    assert_eq!(render(passed).unwrap_err(), JinjaError::Limit("takes too long"));
}

#[test]
fn messages_have_no_control_characters() {
    let raised = |source: &str| match Template::new(source).unwrap().render(&[], LocalTime::from_seconds(0)) {
        Err(JinjaError::Raised(message) | JinjaError::Runtime { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(raised("{{ raise_exception('a\\x1b[31mb\\u009b\\n\\tc') }}"), "a\u{fffd}[31mb\u{fffd}\n\tc");
    assert!(!raised("{{ {}['\\x1b'].x }}").contains('\x1b'));
    assert!(!raised("{{ '%\\x1b' % 1 }}").contains('\x1b'));
}
