//! A cluster in simulated time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::SystemTime;

use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::testing::{
    FailureRecord, FailureScope, Fraction, OpenRequest, Rotation, Subject, Validity,
};

use node_attestation_core::time::until;

use super::*;

/// The default lifetime of a certificate.
pub(super) const LIFETIME: Duration = Duration::from_hours(7 * 24);

/// The time by which signers backdate certificates.
const BACKDATED: Duration = Duration::from_mins(5);

/// The time after which kube-controller-manager deletes a pending request, and the time between its rounds.
const PENDING_KEPT: Duration = DAY;
const COLLECTED_EVERY: Duration = HOUR;

/// The age at which a verifier rejects evidence.
const EVIDENCE_VALID: Duration = Duration::from_mins(14);

/// The duration of a decision that calls a cloud API.
const DECISION: Duration = Duration::from_secs(1);

/// The length of a request with evidence.
const REQUEST_LEN: usize = 4096;

/// The time between two runs of the plugin while a renewal is pending.
const RUN_AGAIN: Duration = Duration::from_secs(30);

/// The component that is unavailable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Away {
    Controller,
    /// The workload cluster is unavailable, including kube-controller-manager.
    ApiServer,
    /// STS, or the external signer. The controller runs, and fails requests with old evidence, but cannot issue
    /// certificates. The order of these checks is tested in `node-attestation-core`
    /// (`old_evidence_fails_while_the_external_signer_is_unavailable`).
    Decisions,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Issued,
    Failed,
}

/// A certificate signing request in the workload cluster.
struct Filed {
    node: usize,
    created: Duration,
    attested: Duration,
    state: State,
}

pub(super) struct Node {
    subject: Subject,
    pub(super) validity: Validity,
    jitter: Fraction,
    open: Option<(OpenRequest, Duration)>,
    record: Option<FailureRecord>,
    /// The index in `World::filed` of the request in `open`.
    filed: Option<usize>,
    undecided: usize,
}

/// A cluster. Times are relative to the start of the outage.
pub(super) struct World {
    away: Away,
    pub(super) nodes: Vec<Node>,
    filed: BTreeMap<usize, Filed>,
    /// The number of requests that were created.
    pub(super) last: usize,
    /// The next runs of the plugin.
    runs: BinaryHeap<Reverse<(Duration, usize)>>,
    /// The start of an API server outage. Before this time, the controller is slow.
    pub(super) begin: Duration,
    /// The end of the outage.
    back: Duration,
    /// The expiry time of the bootstrap tokens.
    pub(super) tokens_end: Duration,
    collected: Duration,
    pub(super) undecided: usize,
    pub(super) most_undecided: usize,
    pub(super) most_of_node: usize,
    /// The number of plugin runs that had neither a certificate nor a token, after the end of the controller's outage.
    pub(super) in_vain: usize,
}

pub(super) fn at(time: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000) + time
}

fn since(time: SystemTime) -> Duration {
    until(time, at(Duration::ZERO))
}

fn scope() -> FailureScope {
    FailureScope {
        boot_id: Some("boot".to_owned()),
        settings: "settings".to_owned(),
    }
}

impl World {
    /// Creates a cluster with this number of nodes, which renewed their certificates within one day that ended this
    /// long ago.
    pub(super) fn new(away: Away, back: Duration, nodes: usize, ago: Duration) -> Self {
        let node = |number: usize| {
            let name = format!("ip-10-{number}.ec2.internal");
            // The renewals are evenly distributed over the day that ends `ago` before the outage.
            let issued = at(Duration::ZERO) - ago - DAY + spread(number);
            Node {
                subject: Subject {
                    signer_name: "attestation.cluster.x-k8s.io/aws-client".to_owned(),
                    expiration_seconds: u32::try_from(LIFETIME.as_secs()).unwrap(),
                    node_name: NodeName::parse(&name).unwrap(),
                    provider_id: ProviderId::parse(&format!("aws:///a/i-{number}")).unwrap(),
                    audience: Audience::parse("prod").unwrap(),
                },
                validity: validity(issued),
                jitter: jitter(number),
                open: None,
                record: None,
                filed: None,
                undecided: 0,
            }
        };
        Self {
            away,
            nodes: (0..nodes).map(node).collect(),
            filed: BTreeMap::new(),
            last: 0,
            runs: (0..nodes)
                .map(|node| Reverse((Duration::ZERO, node)))
                .collect(),
            begin: Duration::ZERO,
            back,
            tokens_end: crate::hardening::tokens::TTL,
            collected: Duration::ZERO,
            undecided: 0,
            most_undecided: 0,
            most_of_node: 0,
            in_vain: 0,
        }
    }

    /// Simulates the time until `end`, with `controller` if it is available.
    pub(super) async fn until(&mut self, end: Duration, controller: &mut Option<Controller>) {
        loop {
            let run = self.runs.peek().map(|run| run.0.0);
            let busy = controller.as_ref().and_then(Controller::next_event);
            let round = self.collected + COLLECTED_EVERY;
            let next = [run, busy, Some(round)].into_iter().flatten().min();
            let next = next.unwrap_or(end);
            if next > end {
                break;
            }
            if let Some(controller) = controller {
                controller.advance_to(next).await;
                controller.work(self);
            }
            if round == next {
                self.collect(next, controller);
            }
            while self.runs.peek().is_some_and(|run| run.0.0 <= next) {
                let Some(Reverse((_, node))) = self.runs.pop() else {
                    break;
                };
                let again = self.run(node, next, controller);
                let again = if controller.is_some() {
                    again.max(next + Duration::from_secs(1))
                } else {
                    self.in_outage(node, next)
                };
                self.runs.push(Reverse((again, node)));
            }
        }
    }

    /// The next run that has an effect. While a request is pending, this is the run that creates another request.
    fn in_outage(&self, number: usize, now: Duration) -> Duration {
        let node = &self.nodes[number];
        let back = self.back + RUN_AGAIN.mul_f64(share(number));
        if self.has_no_api_server(now) {
            return back;
        }
        let end = since(node.validity.not_after);
        let next = match (&node.open, node.validity.rotation(at(now), node.jitter)) {
            (_, Rotation::Keep) => since(node.validity.renew_at(node.jitter)),
            (Some((open, _)), Rotation::Renew) => {
                let lifetime = Some(node.validity.lifetime());
                let is_waited_for =
                    |time: &Duration| open.is_worth_taking_up(&node.subject, lifetime, at(*time));
                let (mut least, mut most) = (now, end);
                while most > least + RUN_AGAIN {
                    let middle = (least + most) / 2;
                    if is_waited_for(&middle) {
                        least = middle;
                    } else {
                        most = middle;
                    }
                }
                most
            }
            (None, Rotation::Renew) | (_, Rotation::Enrol) => back,
        };
        next.min(back).max(now + Duration::from_secs(1))
    }

    fn has_no_api_server(&self, now: Duration) -> bool {
        self.away == Away::ApiServer && (self.begin..self.back).contains(&now)
    }

    /// Deletes old requests, as kube-controller-manager does.
    fn collect(&mut self, now: Duration, controller: &mut Option<Controller>) {
        self.collected = now;
        if self.has_no_api_server(now) {
            return;
        }
        let nodes = &mut self.nodes;
        self.filed.retain(|number, filed| {
            let is_kept = filed.state != State::Pending || now < filed.created + PENDING_KEPT;
            if !is_kept {
                let node = &mut nodes[filed.node];
                node.undecided -= 1;
                self.undecided -= 1;
                node.filed = node.filed.filter(|of_node| of_node != number);
                if let Some(controller) = controller {
                    controller.queue.gone(&uid(*number));
                }
            }
            is_kept
        });
    }

    /// Simulates a run of the plugin. Returns the time of the next run.
    fn run(
        &mut self,
        number: usize,
        now: Duration,
        controller: &mut Option<Controller>,
    ) -> Duration {
        let node = &mut self.nodes[number];
        let rotation = node.validity.rotation(at(now), node.jitter);
        if rotation == Rotation::Keep {
            let until = node.validity.renew_at(node.jitter);
            return since(node.validity.expiry_kept(at(now), until));
        }
        let has_certificate = node.validity.holds_at(at(now));
        let held = |record: &FailureRecord| record.holds(&scope(), at(now));
        if let Some(until) = node.record.as_ref().and_then(held) {
            return since(until);
        }
        let is_back = controller.is_some() && now >= self.back;
        let code = if has_certificate || now < self.tokens_end {
            self.ask(number, now, has_certificate, controller)
        } else {
            self.in_vain += usize::from(is_back);
            Some(Code::Unauthorized)
        };
        let node = &mut self.nodes[number];
        let Some(code) = code else {
            node.record = None;
            node.open = None;
            node.filed = None;
            node.validity = validity(at(now));
            return since(
                node.validity
                    .expiry_kept(at(now), node.validity.renew_at(node.jitter)),
            );
        };
        let failure = Failure::new(code, "a failure", "wait");
        let record = FailureRecord::after(node.record.as_ref(), &failure, &scope(), at(now));
        let next = record.holds(&scope(), at(now));
        node.record = Some(record);
        let next = next.unwrap_or(at(now) + Duration::from_secs(30));
        if has_certificate {
            since(node.validity.expiry_awaiting_renewal(at(now), next))
        } else {
            since(next)
        }
    }

    /// Continues the open request, or creates another request. Returns `None` if the certificate is issued.
    fn ask(
        &mut self,
        number: usize,
        now: Duration,
        has_certificate: bool,
        controller: &mut Option<Controller>,
    ) -> Option<Code> {
        if self.has_no_api_server(now) {
            return Some(Code::Unreachable);
        }
        let node = &mut self.nodes[number];
        let lifetime = has_certificate.then(|| node.validity.lifetime());
        let is_continued = node
            .open
            .as_ref()
            .is_some_and(|(open, _)| open.is_worth_taking_up(&node.subject, lifetime, at(now)));
        if !is_continued {
            let open = OpenRequest::new(String::new(), Vec::new(), node.subject.clone(), at(now));
            node.open = Some((open, now));
            node.filed = None;
        }
        let (_, attested) = node.open.as_ref()?;
        let Some(filed) = node.filed else {
            let requester = if has_certificate {
                format!("system:node:{}", node.subject.node_name.as_str())
            } else {
                format!("system:bootstrap:{number:06}")
            };
            self.last += 1;
            let filed = Filed {
                node: number,
                created: now,
                attested: *attested,
                state: State::Pending,
            };
            if let Some(controller) = controller {
                controller.sees(self.last, &filed, &requester);
            }
            self.filed.insert(self.last, filed);
            node.filed = Some(self.last);
            node.undecided += 1;
            self.most_of_node = self.most_of_node.max(node.undecided);
            self.undecided += 1;
            self.most_undecided = self.most_undecided.max(self.undecided);
            return Some(Code::Pending);
        };
        match self.filed[&filed].state {
            State::Pending => Some(Code::Pending),
            State::Issued => None,
            State::Failed => {
                // The plugin drops the request, and keeps its key.
                node.open = None;
                node.filed = None;
                Some(Code::Failed)
            }
        }
    }

    /// Whether the controller has decided on the request.
    fn decide(&mut self, number: usize, now: Duration) -> bool {
        let Some(filed) = self.filed.get_mut(&number) else {
            return true;
        };
        let is_fresh = now <= filed.attested + EVIDENCE_VALID;
        if is_fresh && self.away == Away::Decisions && now < self.back {
            return false;
        }
        filed.state = if is_fresh {
            State::Issued
        } else {
            State::Failed
        };
        self.nodes[filed.node].undecided -= 1;
        self.undecided -= 1;
        true
    }

    pub(super) fn certificates(&self, now: Duration) -> usize {
        let valid = |node: &&Node| node.validity.holds_at(at(now));
        self.nodes.iter().filter(valid).count()
    }
}

/// The time of day at which a node starts, and its jitter. Both are the same in each run.
fn spread(number: usize) -> Duration {
    DAY.mul_f64(share(number))
}

fn share(number: usize) -> f64 {
    let scattered = u32::try_from(number).unwrap().wrapping_mul(2_654_435_761);
    f64::from(scattered) / f64::from(u32::MAX)
}

fn jitter(number: usize) -> Fraction {
    let bytes = u32::try_from(number).unwrap().wrapping_mul(40_503_001);
    Fraction::from_bytes(&bytes.to_be_bytes())
}

fn validity(issued: SystemTime) -> Validity {
    Validity {
        not_before: issued - BACKDATED,
        not_after: issued + LIFETIME,
    }
}

fn uid(number: usize) -> String {
    format!("{number:0>36}")
}

/// A controller that has just started.
pub(super) struct Controller {
    queue: Queue,
    now: Duration,
    begun: Instant,
    started: Duration,
    /// The decisions in progress.
    ends: BinaryHeap<Reverse<(Duration, usize)>>,
    pub(super) left_out: bool,
}

impl Controller {
    /// Lists the requests in the cluster.
    pub(super) fn start(world: &World, now: Duration) -> Self {
        let mut controller = Self {
            queue: Queue::default(),
            now,
            begun: Instant::now(),
            started: now,
            ends: BinaryHeap::new(),
            left_out: false,
        };
        controller.queue.listing();
        // A list is sorted by name, and the names are digests.
        let mut listed: Vec<_> = world.filed.iter().collect();
        listed.sort_by_key(|(number, _)| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for (number, filed) in listed {
            let node = &world.nodes[filed.node].subject.node_name;
            let requester = format!("system:node:{}", node.as_str());
            controller.sees(*number, filed, &requester);
        }
        controller.queue.listed();
        controller.left_out = controller.queue.left_out.is_some();
        controller
    }

    fn sees(&mut self, number: usize, filed: &Filed, requester: &str) {
        if filed.state != State::Pending {
            return;
        }
        let mut csr = csr(&uid(number), &uid(number), "1");
        csr.spec.username = Some(requester.to_owned());
        csr.spec.request.0 = vec![0; REQUEST_LEN];
        self.queue.seen(csr);
    }

    async fn advance_to(&mut self, now: Duration) {
        self.now = self.now.max(now);
        let elapsed = self.begun.elapsed();
        tokio::time::advance(self.now.saturating_sub(self.started + elapsed)).await;
    }

    fn next_event(&self) -> Option<Duration> {
        let end = self.ends.peek().map(|end| end.0.0);
        let turn = self.queue.next_turn();
        let turn = turn.map(|turn| self.started + turn.duration_since(self.begun));
        let next = end.into_iter().chain(turn).min();
        next.map(|next| next.max(self.now))
    }

    /// Completes decisions, and starts other decisions.
    fn work(&mut self, world: &mut World) {
        while self.ends.peek().is_some_and(|end| end.0.0 <= self.now) {
            let Some(Reverse((_, number))) = self.ends.pop() else {
                break;
            };
            if world.decide(number, self.now) {
                self.queue.settled(&uid(number));
            } else {
                self.queue.retry(&uid(number), Instant::now());
            }
        }
        while let Some(work) = self.queue.next(Instant::now()) {
            let number = work.uid.trim_start_matches('0').parse().unwrap();
            self.ends.push(Reverse((self.now + DECISION, number)));
        }
        self.queue.relist(Instant::now());
    }
}
