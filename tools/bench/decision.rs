//! The instructions of one decision of the controller, measured with callgrind. They do not depend on the machine's
//! speed.

use node_attestation_core::decide::Decision;
use node_attestation_core::testing::{cluster, decided, valid};

use crate::measure::Program;
use crate::report::{Suite, print_table};

/// The option of this program that only decides.
pub const OPTION: &str = "decide";

/// The numbers of decisions in two runs. The difference of the runs does not contain the start of the program.
const FEW: u32 = 5;
const MORE: u32 = 25;

/// The limit for one decision, in a debug build.
const MAX_INSTRUCTIONS: f64 = 30_000_000.0;

/// Decides this number of times on a join with evidence.
pub fn decide(count: u32) {
    let (context, request) = (cluster(), valid());
    for _ in 0..count {
        let decision = decided(&request, &context);
        assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
    }
}

/// Measures, prints the table, and returns the values.
pub fn run() -> Suite {
    let this = std::env::current_exe().unwrap();
    let instructions = |count: u32| {
        let program = Program::new("decisions", &this);
        let option = [format!("--{OPTION}"), count.to_string()];
        program.with_args(option).instructions()
    };
    let (few, more) = (instructions(FEW), instructions(MORE));
    let one = more.saturating_sub(few) as f64 / f64::from(MORE - FEW);
    let mut suite = Suite::new("decision");
    suite.add(
        "instructions of one decision",
        one,
        "instructions",
        Some(MAX_INSTRUCTIONS),
    );
    let row = |value: f64| format!("{:.2}", value / 1e6);
    print_table(
        &["one decision", "million instructions", "limit"],
        &[vec![
            "a join with evidence".to_owned(),
            row(one),
            row(MAX_INSTRUCTIONS),
        ]],
    );
    suite
}
