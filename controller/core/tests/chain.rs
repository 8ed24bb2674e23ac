//! Tests of the chain of checks: an embedder tries to bypass it.
//!
//! Each case is one bypass, which is tried at every link. `as_meant.rs` is the valid counterpart of all cases, and
//! compiles. It is a module here instead of a case, because every dependency would be compiled again for a case that
//! runs.

#[path = "chain/as_meant.rs"]
mod as_meant;

#[test]
fn code_that_skips_a_check_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/chain/link_skipped.rs");
    cases.compile_fail("tests/chain/link_made_by_hand.rs");
    cases.compile_fail("tests/chain/link_used_twice.rs");
    cases.compile_fail("tests/chain/link_copied.rs");
    cases.compile_fail("tests/chain/unattested_identity_renewed.rs");
}

#[test]
fn code_that_runs_the_checks_in_order_compiles() {
    let _ = as_meant::chain;
    let _ = as_meant::serving;
    let _ = as_meant::approved;
    let _ = as_meant::exempt;
    let _ = as_meant::renewal;
}
