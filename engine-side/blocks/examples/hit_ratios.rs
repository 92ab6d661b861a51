//! The share of requests that hit, by policy and size, on three traces; draws `docs/benchmarks/hit-ratios.svg`.
//!
//!     cargo run --release -p kv-blocks --example hit_ratios [FILE.svg]

#[path = "../tests/common/traces.rs"]
mod traces;

use std::fmt::Write;

use kv_blocks::policy::PolicyKind;
use traces::{TRACES, hit_ratio};

const POLICIES: [(&str, PolicyKind, &str); 3] = [
    ("S3-FIFO", PolicyKind::S3Fifo, "#0b6e4f"),
    ("LRU", PolicyKind::Lru, "#c1440e"),
    ("FIFO", PolicyKind::Fifo, "#4361ee"),
];

/// Sizes, as shares of the distinct blocks of a trace.
const SIZES: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4];

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 230.0;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "docs/benchmarks/hit-ratios.svg".to_owned());
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"11\">\n",
        WIDTH * TRACES.len() as f64 + 30.0,
        HEIGHT + 90.0
    );
    for (number, (name, trace)) in TRACES.iter().enumerate() {
        let trace = trace();
        let distinct = trace.iter().collect::<std::collections::HashSet<_>>().len();
        println!("{name}: {} requests of {distinct} blocks", trace.len());
        let left = 56.0 + number as f64 * WIDTH;
        let x = |size: usize| left + size as f64 / (SIZES.len() - 1) as f64 * (WIDTH - 60.0);
        let y = |ratio: f64| 30.0 + (1.0 - ratio) * HEIGHT;
        let mut put = |line: String| svg.push_str(&line);
        put(format!("<text x=\"{left}\" y=\"18\" font-weight=\"bold\">{name}</text>\n"));
        for step in 0..=4 {
            let ratio = f64::from(step) / 4.0;
            let (y, end) = (y(ratio), x(SIZES.len() - 1));
            put(format!("<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{end:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n"));
            put(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.2}</text>\n", left - 5.0, y + 4.0));
        }
        for (index, size) in SIZES.iter().enumerate() {
            put(format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{size}</text>\n",
                x(index),
                y(0.0) + 15.0
            ));
        }
        let (middle, up) = ((left + x(SIZES.len() - 1)) / 2.0, (left - 42.0, y(0.5)));
        put(format!(
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">share of the blocks that fit</text>\n",
            y(0.0) + 33.0
        ));
        put(format!(
            "<text transform=\"translate({:.1} {:.1}) rotate(-90)\" text-anchor=\"middle\">share of requests that hit</text>\n",
            up.0, up.1
        ));
        for (place, (policy, kind, colour)) in POLICIES.iter().enumerate() {
            let mut points = String::new();
            print!("  {policy:8}");
            for (index, size) in SIZES.iter().enumerate() {
                let ratio = hit_ratio(*kind, &trace, (distinct as f64 * size) as usize);
                print!(" {ratio:.3}");
                let _ = write!(points, "{:.1},{:.1} ", x(index), y(ratio));
            }
            println!();
            put(format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n"));
            let at = left + place as f64 * 75.0;
            put(format!("<text x=\"{at:.1}\" y=\"{:.1}\" fill=\"{colour}\">{policy}</text>\n", HEIGHT + 84.0));
        }
    }
    svg.push_str("</svg>\n");
    std::fs::write(&path, svg)?;
    println!("wrote {path}; sizes are shares of the distinct blocks: {SIZES:?}");
    Ok(())
}
