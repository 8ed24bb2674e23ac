use super::*;

#[test]
fn a_long_list_is_truncated_with_the_number_of_entries() {
    let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();

    assert_eq!(some(&names(2)), "n0, n1");
    assert_eq!(some(&names(5)), "n0, n1, n2, n3, n4");
    assert_eq!(some(&names(8)), "n0, n1, n2, n3, n4 and 3 more");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_check_fails_at_its_deadline() {
    let found = within(std::future::pending()).await;

    assert_eq!(found.state, State::Fail);
    assert_eq!(found.what, "no response within 10 s");
}

#[test]
fn a_finding_with_a_long_name_is_truncated() {
    let finding = Finding::fail("n".repeat(1 << 20), "é".repeat(1 << 20));

    assert_eq!(
        [finding.what, finding.cure].map(|text| text.len()),
        [MAX_LEN; 2]
    );
}
