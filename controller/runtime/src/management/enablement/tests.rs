use super::step::EnableError;
use super::*;

fn wanted(attestor: &str) -> Wanted {
    let attestors = vec![attestor.to_owned()];
    Wanted {
        cluster_uid: "uid".to_owned(),
        attestors: OwnAttestors::Named(attestors.clone()),
        step: discriminant(&Step::Create {
            attestors,
            watch_filter: None,
        }),
    }
}

/// The wait in seconds, after so many steps for `aws` the last of which ended like this, before
/// one for `next`.
fn wait(outcome: Outcome, tries: u32, next: &str) -> u64 {
    let at = Instant::now();
    let last = Last {
        wanted: wanted("aws"),
        tries,
        at,
        outcome: Some(outcome),
    };
    let due = due_at(Some(&last), &wanted(next), at).unwrap();
    due.duration_since(at).as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_refused_step_is_retried_rarely_and_an_outage_soon() {
    for (outcome, tries, same, another) in [
        (Outcome::Written, 1, 4, 2),
        (Outcome::Written, 2, 8, 2),
        (Outcome::Written, 40, 600, 2),
        (Outcome::Unavailable, 1, 4, 2),
        (Outcome::Unavailable, 40, 60, 2),
        (Outcome::Refused, 1, 600, 30),
        (Outcome::Refused, 40, 600, 30),
    ] {
        let waits = [wait(outcome, tries, "aws"), wait(outcome, tries, "tpm")];
        assert_eq!(waits, [same, another], "{outcome:?} {tries}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_different_step_is_retried_sooner() {
    let at = Instant::now();
    let last = Last {
        wanted: Wanted {
            step: discriminant(&Step::Report(EnableError::MadeByPerson)),
            ..wanted("aws")
        },
        tries: 9,
        at,
        outcome: Some(Outcome::Refused),
    };

    let due = due_at(Some(&last), &wanted("aws"), at);
    assert_eq!(due, Some(at + ANOTHER));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_has_one_step_at_a_time_and_the_first_immediately() {
    let now = Instant::now();
    let last = Last {
        wanted: wanted("aws"),
        tries: 1,
        at: now,
        outcome: None,
    };

    assert_eq!(due_at(Some(&last), &wanted("tpm"), now), None);
    assert_eq!(due_at(None, &wanted("tpm"), now), Some(now));
}

#[tokio::test(start_paused = true)]
async fn frequently_changing_clusters_are_processed_last() {
    let now = Instant::now();
    let due = |name: &str, last: Option<Instant>| DueStep {
        last,
        key: ObjectKey::new("tenant", name),
        wanted: wanted("aws"),
        step: Step::Create {
            attestors: vec![],
            watch_filter: None,
        },
    };
    let mut all: Vec<_> = (0..1000)
        .map(|number| due(&format!("a{number}"), Some(now)))
        .collect();
    all.push(due("new", None));
    all.push(due("waiting", Some(now - Duration::from_secs(3))));

    let chosen = first_in_turn(all, &HashMap::new(), 3);

    let names: Vec<_> = chosen.iter().map(|one| one.key.name.as_str()).collect();
    assert_eq!(names, ["new", "waiting", "a0"]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_new_clusters_has_every_second_step() {
    let now = Instant::now();
    let due = |namespace: &str, name: &str, last| DueStep {
        last,
        key: ObjectKey::new(namespace, name),
        wanted: wanted("aws"),
        step: Step::Create {
            attestors: vec![],
            watch_filter: None,
        },
    };
    let all = || {
        let flood = (0..1000).map(|number| due("a", &format!("{number:03}"), None));
        let victims = ["1", "2"].map(|name| due("b", name, Some(now)));
        flood.chain(victims).collect::<Vec<_>>()
    };
    let running = |running| LastOfNamespace {
        running,
        at: Some(now),
    };

    for (last, expected) in [
        (HashMap::new(), ["a/000", "b/1", "a/001", "b/2"]),
        (
            HashMap::from([("a".to_owned(), running(1))]),
            ["b/1", "b/2", "a/000", "a/001"],
        ),
        (
            HashMap::from([("a".to_owned(), running(0))]),
            ["b/1", "a/000", "b/2", "a/001"],
        ),
    ] {
        let chosen = first_in_turn(all(), &last, 4);

        let names: Vec<_> = chosen.iter().map(|one| one.key.to_string()).collect();
        assert_eq!(names, expected);
    }
}
