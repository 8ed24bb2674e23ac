//! Tests of the chain of checks: code of an embedder that bypasses a check must not compile.
//!
//! Each case is one bypass, which is tried at every link. `as_meant.rs` is the valid counterpart of all cases, and
//! compiles. It is a module of this test and not a case, because a case that runs would compile every dependency again.

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
