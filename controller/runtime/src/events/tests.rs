use std::io::{Read as _, Write as _};

use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::refusal::{Deferral, Denial};
use node_attestation_core::testing::{cluster, now, valid};
use tokio::time::Instant;

use super::*;
use crate::footprint::{any, assert_limits, size};
use crate::memory::Share;

#[test]
fn the_future_that_writes_events_has_a_size_limit() {
    let write_all = size(|| write_all(any(), any(), any(), any()));
    assert_limits(&[("write_all", write_all, 1000)]);
}

fn decided(decision: Decision) -> Decided {
    Decided {
        decision,
        steps: Vec::new(),
        machine: None,
    }
}

fn denied(denial: Denial) -> Decided {
    decided(Decision::Deny(denial))
}

/// The only Event on the request.
fn on_request(decided: &Decided) -> Event {
    let mut events = events_of(&valid(), decided, now());
    assert_eq!(events.len(), 1);
    let (cluster, event) = events.remove(0);
    assert_eq!(cluster, Destination::Workload);
    event
}

fn machine() -> ObjectReference {
    ObjectReference {
        api_version: Some("cluster.x-k8s.io/v1beta2".to_owned()),
        kind: Some("Machine".to_owned()),
        name: Some("m1".to_owned()),
        namespace: Some("prod".to_owned()),
        ..ObjectReference::default()
    }
}

#[test]
fn a_machine_gets_all_events_and_its_request_only_refusals() {
    let deferral = || Decision::Retry(Deferral::MachineNotFound);
    let refusal = || Decision::Deny(Denial::NoPemBlock);
    let issue = || node_attestation_core::testing::decided(&valid(), &cluster());
    for (decision, clusters) in [
        (issue(), &[Destination::Management][..]),
        (deferral(), &[Destination::Management]),
        (refusal(), &[Destination::Management, Destination::Workload]),
    ] {
        let decided = Decided {
            machine: Some(machine()),
            ..decided(decision)
        };

        let events = events_of(&valid(), &decided, now());

        let written: Vec<_> = events.iter().map(|(cluster, _)| *cluster).collect();
        assert_eq!(written, clusters);
        let event = &events[0].1;
        assert_eq!(event.metadata.namespace.as_deref(), Some("prod"));
        assert_eq!(event.regarding, Some(machine()));
        let related = event.related.clone().unwrap();
        assert_eq!(related.kind.as_deref(), Some("CertificateSigningRequest"));
    }
}

#[test]
fn an_event_without_a_machine_object_is_on_the_request() {
    let issued = node_attestation_core::testing::decided(&valid(), &cluster());

    assert_eq!(
        on_request(&decided(issued)).type_.as_deref(),
        Some("Normal")
    );
}

#[test]
fn an_event_has_all_required_fields() {
    let event = on_request(&denied(Denial::NoPemBlock));

    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reason.as_deref(), Some("NoPemBlock"));
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    assert!(event.event_time.is_some());
    let regarding = event.regarding.unwrap();
    assert_eq!(regarding.kind.as_deref(), Some("CertificateSigningRequest"));
    assert_eq!(regarding.name, valid().metadata.name);
}

/// An API server that accepts connections and never responds.
fn silent() -> (std::net::TcpListener, Client) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = kube::Config::new(url.parse().unwrap());
    (listener, Client::try_from(config).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_delays_the_shutdown_until_the_deadline() {
    let (_listener, client) = silent();
    let (events, writer) = Events::start(client, None);
    let denial = denied(Denial::NoPemBlock);
    let begun = Instant::now();

    for _ in 0..=MAX_WAITING {
        events.publish(&valid(), &denial, now());
    }

    assert_eq!(events.left_out.load(Ordering::Relaxed), 1);
    drop(events);
    writer.finish().await;
    assert_eq!(begun.elapsed().as_secs(), DRAIN_DEADLINE.as_secs());
}

#[test]
fn the_longest_pending_events_use_at_most_four_megabytes() {
    let (events, next) = Events::collected();
    let longest = denied(Denial::NotStrictDer("x".repeat(2000)));

    for _ in 0..=MAX_WAITING {
        events.publish(&valid(), &longest, now());
    }

    let waiting = std::iter::from_fn(next);
    let lengths = waiting.map(|event| serde_json::to_vec(&event).unwrap().len());
    let bytes: usize = lengths.sum();
    assert!((1..=4_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn the_memory_of_waiting_events_is_bounded_and_released() {
    let (mut events, mut next) = Events::collected();
    let of_ten = Share::alone(10 * 16 * 1024);
    let memory = Memory {
        bytes: 0,
        held: of_ten.holding(),
    };
    events.memory = Arc::new(Unshared::new(memory));
    let denial = denied(Denial::NotStrictDer("x".repeat(2000)));
    for round in [1, 2] {
        let mut sent = 0;
        for _ in 0..MAX_WAITING {
            events.publish(&valid(), &denial, now());
        }
        while next().is_some() {
            sent += 1;
        }
        // Each Event uses 3 kB.
        assert!((40..60).contains(&sent), "{round}: {sent}");
        assert_eq!(events.memory.lock().bytes, 0);
    }
    assert!(events.left_out.load(Ordering::Relaxed) > 0);
}

#[tokio::test(start_paused = true)]
async fn events_that_wait_for_a_turn_or_a_budget_use_counted_memory() {
    let rate = Rate {
        burst: 1,
        every: Duration::from_hours(1),
    };
    let cluster = ObjectKey::new("tenant-a", "prod-1");
    let limits = EventLimits {
        rate: Arc::new(FairRate::new(rate)),
        lines: ClusterLines::of(&cluster),
        cluster,
    };
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    let events = Events::sending(sender, &limits);
    let mut line = InLine::new(receiver, limits);
    // 64 Events wait for a turn, and the other Events wait for the budgets of their machines.
    for number in 0..80 {
        let regarding = ObjectReference {
            name: Some(format!("{number:02}")),
            ..machine()
        };
        events.tell(regarding, true, "RecordRetired", String::new(), now());
    }
    let all = events.memory.lock().bytes;
    assert!(all > 80 * 2048, "{all}");

    assert!(line.next().await.is_some());
    let next = timeout(Duration::from_secs(1), line.next()).await;

    assert!(next.is_err());
    assert_eq!(events.memory.lock().bytes, all / 80 * 79);
    drop(line);
    assert_eq!(events.memory.lock().bytes, 0);
}

/// Returns a writer's stream of Events for this cluster. The Events are about this many machines.
fn in_line(rate: &Arc<FairRate>, namespace: &str, name: &str, machines: usize) -> InLine {
    let cluster = ObjectKey::new(namespace, name);
    let limits = EventLimits {
        rate: rate.clone(),
        lines: ClusterLines::of(&cluster),
        cluster,
    };
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    let events = Events::sending(sender, &limits);
    for number in 0..machines {
        let regarding = ObjectReference {
            name: Some(number.to_string()),
            ..machine()
        };
        events.tell(regarding, true, "RecordRetired", String::new(), now());
    }
    InLine::new(receiver, limits)
}

#[tokio::test(start_paused = true)]
async fn events_of_1000_clusters_delay_other_namespaces_by_two_events() {
    let rate = Arc::new(FairRate::new(RATE));
    let written = Arc::new(AtomicU64::new(0));
    for number in 0..1000 {
        let mut line = in_line(&rate, "flood", &number.to_string(), 10);
        let written = written.clone();
        tokio::spawn(async move {
            while line.next().await.is_some() {
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let burst = written.load(Ordering::Relaxed);
    assert_eq!(burst, 1000, "of a namespace that is alone");

    let mut victim = in_line(&rate, "other", "victim", 1);
    let begun = Instant::now();
    assert!(victim.next().await.is_some());

    let waited = begun.elapsed();
    assert!(waited <= 2 * RATE.every, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_machine_event_does_not_delay_a_request_event() {
    let rate = Arc::new(FairRate::new(RATE));
    let cluster = ObjectKey::new("a", "prod-1");
    for _ in 0..RATE.burst {
        rate.take(&cluster).await;
    }
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    let limits = EventLimits {
        rate,
        lines: ClusterLines::of(&cluster),
        cluster,
    };
    let events = Events::sending(sender, &limits);
    let on_both = Decided {
        machine: Some(machine()),
        ..denied(Denial::NoPemBlock)
    };
    events.publish(&valid(), &on_both, now());
    let mut line = InLine::new(receiver, limits);

    let (first, second) = (line.next().await.unwrap(), line.next().await.unwrap());

    assert_eq!(
        (first.0, second.0),
        (Destination::Workload, Destination::Management)
    );
}

#[tokio::test(start_paused = true)]
async fn hanging_event_writes_of_a_cluster_do_not_block_other_clusters() {
    let rate = Arc::new(FairRate::new(RATE));
    let cluster = ObjectKey::new("flood", "prod-1");
    for _ in 0..RATE.burst {
        rate.take(&cluster).await;
    }
    let mut hanging = in_line(&rate, "flood", "prod-1", 1);
    // This write is next in line, but the writer does not poll it while all other writes for its cluster hang.
    assert!(hanging.next().now_or_never().is_none());

    let mut victim = in_line(&rate, "other", "victim", 1);
    let begun = Instant::now();
    let next = timeout(EVENT_DEADLINE, victim.next()).await;

    assert!(next.is_ok_and(|next| next.is_some()));
    let waited = begun.elapsed();
    assert!(waited <= 3 * RATE.every, "{waited:?}");
    assert!(hanging.next().await.is_some());
}

#[tokio::test]
async fn pending_events_are_written_during_shutdown() {
    let (listener, client) = silent();
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 4];
        connection.read_exact(&mut request).unwrap();
        let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(refusal).unwrap();
        request
    });
    let (events, writer) = Events::start(client, None);

    events.publish(&valid(), &denied(Denial::NoPemBlock), now());
    drop(events);
    writer.finish().await;

    assert_eq!(&server.join().unwrap(), b"POST");
}

#[test]
fn a_long_note_is_truncated_to_the_limit_of_the_api() {
    let denial = denied(Denial::NotStrictDer("\u{1f600}".repeat(2000)));

    let event = on_request(&denial);

    assert!(event.note.unwrap().len() <= MAX_NOTE_LEN);
}

#[test]
fn an_ignored_request_causes_no_event() {
    let ignored = decided(Decision::Ignore(
        node_attestation_core::refusal::Ignored::AlreadyDenied,
    ));

    assert!(events_of(&valid(), &ignored, now()).is_empty());
}

#[test]
fn every_failure_except_a_challenge_causes_an_event() {
    let challenged = Failure::ChallengeIssued {
        detail: "7".to_owned(),
        annotations: vec![],
        endorsement_key: KeyDigest::of(b"endorsement key"),
    };
    assert!(events_of(&valid(), &decided(Decision::Fail(challenged)), now()).is_empty());

    let expired = on_request(&decided(Decision::Fail(Failure::EvidenceExpired)));
    assert_eq!(expired.type_.as_deref(), Some("Warning"));
}

#[test]
fn a_duplicated_tpm_causes_a_warning_on_the_machine_and_the_request() {
    let node_name = NodeName::parse("n1").unwrap();
    let holder = ProviderId::parse("metal:///1").unwrap();
    let backwards = Denial::TpmRanBackwards(node_name.clone(), holder.clone());
    let another = Denial::TpmOfAnotherMachine(node_name, holder);
    for (denial, reason) in [
        (backwards, "TpmRanBackwards"),
        (another, "TpmOfAnotherMachine"),
    ] {
        let decided = Decided {
            machine: Some(machine()),
            ..denied(denial)
        };

        let events = events_of(&valid(), &decided, now());

        let regarding = |event: &Event| event.regarding.clone().unwrap().kind.unwrap();
        let kinds: Vec<_> = events.iter().map(|(_, event)| regarding(event)).collect();
        assert_eq!(kinds, ["Machine", "CertificateSigningRequest"]);
        for (_, event) in events {
            assert_eq!(event.type_.as_deref(), Some("Warning"));
            assert_eq!(event.reason.as_deref(), Some(reason));
            let note = event.note.unwrap();
            assert!(note.contains("metal:///1") && note.contains("n1"), "{note}");
        }
    }
}

impl Events {
    /// A sink for Events, and a function that returns the next Event.
    pub(crate) fn collected() -> (Self, impl FnMut() -> Option<Event>) {
        let (sender, mut receiver) = mpsc::channel(MAX_WAITING);
        let events = Self::sending(sender, &EventLimits::alone());
        let next = move || receiver.try_recv().ok().map(|waiting| waiting.take().1);
        (events, next)
    }
}
