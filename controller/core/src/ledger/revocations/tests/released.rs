//! The limits of the list of released machines.

use super::*;

/// The releases that are read from this annotation, and the reason why some of them are not read.
fn read(text: &str) -> (BTreeMap<ProviderId, SystemTime>, Option<String>) {
    let annotation = (RELEASED_MACHINES_ANNOTATION.to_owned(), text.to_owned());
    let annotations = BTreeMap::from([annotation]);
    let decisions = RevocationDecisions::of_annotations(Some(&annotations));
    let unread = RevocationDecisions::unread(Some(&annotations));
    (decisions.released, unread)
}

fn machine(number: u64) -> ProviderId {
    ProviderId::parse(&format!("a://{number}")).unwrap()
}

fn second(number: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(number)
}

#[test]
fn only_the_300_latest_releases_are_read() {
    // The latest release is first in the text.
    let text = |count: u64| {
        let all = (1..=count)
            .rev()
            .map(|number| format!("a://{number}@{number}"));
        all.collect::<Vec<_>>().join(" ")
    };
    let all = |from: u64, to: u64| (from..=to).map(|number| (machine(number), second(number)));

    assert_eq!(read(&text(300)), (all(1, 300).collect(), None));

    let (released, unread) = read(&text(302));
    assert_eq!(released, all(3, 302).collect());
    let unread = unread.unwrap();
    let expected = "has more than 300 releases, so only the latest 300 have an effect";
    assert!(unread.ends_with(expected), "{unread}");
}

#[test]
fn a_release_list_that_no_command_writes_has_no_effect() {
    let release = "a://1@5";
    let padded = |len: usize| release.to_owned() + &" ".repeat(len - release.len());
    let one = BTreeMap::from([(machine(1), second(5))]);

    assert_eq!(read(&padded(MAX_RELEASED_LEN)), (one, None));

    let (released, unread) = read(&padded(MAX_RELEASED_LEN + 1));
    assert_eq!(released, BTreeMap::new());
    let unread = unread.unwrap();
    let expected = "has more than 160200 bytes, so no release has an effect";
    assert!(unread.ends_with(expected), "{unread}");
}

#[test]
fn the_longest_release_list_of_a_command_is_read() {
    let mut decisions = RevocationDecisions::default();
    for number in 0..MAX_RELEASED {
        let machine = ProviderId::parse(&format!("a://{number:0>508}")).unwrap();
        decisions.release(machine, second(253_402_300_799));
    }

    let text = decisions.released_text();

    assert!(text.len() <= MAX_RELEASED_LEN, "{}", text.len());
    assert_eq!(read(&text), (decisions.released, None));
}

#[test]
fn the_latest_of_two_releases_of_a_machine_applies() {
    for text in ["a://1@5 a://1@3", "a://1@3 a://1@5"] {
        assert_eq!(read(text).0, BTreeMap::from([(machine(1), second(5))]));
    }
}

#[test]
fn decisions_are_copied_only_if_one_is_in_the_future() {
    let mut decisions = RevocationDecisions {
        floor: 7,
        ..RevocationDecisions::default()
    };
    decisions.release(machine(1), at(3));
    let shared = Arc::new(decisions);

    assert!(Arc::ptr_eq(
        &shared.clone().shared_until_or(at(3), 0),
        &shared
    ));

    let early = shared.clone().shared_until_or(at(2), 0);
    assert_eq!(*early, RevocationDecisions::clone(&shared).until(at(2)));
    assert_eq!((early.floor, early.released.len()), (7, 0));
}

#[test]
fn the_oldest_of_too_many_released_machines_is_dropped() {
    let mut decisions = RevocationDecisions::default();
    for hour in 0..=300 {
        decisions.release(provider_id(&format!("m{hour}")), at(hour));
    }

    let released = decisions.released_text();

    assert_eq!(released.split(' ').count(), 300);
    assert!(!released.contains("/m0@") && released.contains("/m1@"));
}
