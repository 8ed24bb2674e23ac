//! Tests of outages, with the decisions of the real plugin and the real queue, in simulated time.

mod world;

use super::super::places::MAX_ENTRIES;
use super::*;
use world::{Away, Controller, LIFETIME, Node, World, at};

const NODES: usize = 5000;
const FEW: usize = 500;
/// The number of nodes in a test that simulates each of their runs for days.
const RUNNING: usize = 50;
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// The cluster at the end of a controller outage, and the restarted controller, which has listed the requests.
async fn after_outage(outage: Duration) -> (World, Option<Controller>) {
    after(Away::Controller, outage, NODES, Duration::ZERO).await
}

/// Like [`after_outage`], but for an outage of this component, and for a cluster with this many nodes. The nodes
/// renewed within one day, which ended this long before the outage.
async fn after(
    away: Away,
    outage: Duration,
    nodes: usize,
    ago: Duration,
) -> (World, Option<Controller>) {
    let mut world = World::new(away, outage, nodes, ago);
    world
        .until(outage.saturating_sub(Duration::from_secs(1)), &mut None)
        .await;
    let controller = Controller::start(&world, outage);
    (world, Some(controller))
}

/// The number of nodes that do not have a certificate from the time after the outage.
fn not_renewed(world: &World, outage: Duration) -> usize {
    let old = |node: &&Node| node.validity.issued() < at(outage);
    world.nodes.iter().filter(old).count()
}

#[tokio::test(start_paused = true)]
async fn five_days_without_a_controller_lose_no_node() {
    let outage = 5 * DAY;
    let (mut world, mut controller) = after_outage(outage).await;
    assert_eq!(world.certificates(outage), NODES);
    assert!(
        (1..=3).contains(&world.most_of_node),
        "{}",
        world.most_of_node
    );
    assert!(
        world.most_undecided <= 3 * NODES,
        "{}",
        world.most_undecided
    );
    let undecided = world.undecided;
    assert!((NODES..MAX_ENTRIES).contains(&undecided), "{undecided}");
    assert!(!controller.as_ref().unwrap().left_out, "each one is found");

    world.until(outage + 12 * HOUR, &mut controller).await;

    assert_eq!(not_renewed(&world, outage), 0);
    assert_eq!(world.undecided, 0);
    assert!(world.most_of_node <= 3, "{}", world.most_of_node);
}

#[tokio::test(start_paused = true)]
async fn a_day_without_a_controller_delays_renewals_and_loses_no_node() {
    let outage = DAY;
    let (mut world, mut controller) = after(Away::Controller, outage, FEW, Duration::ZERO).await;
    assert_eq!(world.certificates(outage + 4 * DAY), FEW);
    // Renewals have become due.
    assert!(world.undecided > FEW / 2, "{}", world.undecided);
    assert!(world.most_of_node <= 3, "{}", world.most_of_node);

    world.until(outage + DAY + 4 * HOUR, &mut controller).await;

    assert_eq!(not_renewed(&world, outage), 0);
    assert_eq!((world.undecided, world.in_vain), (0, 0));
}

/// Asserts that no node has a certificate after this outage, and that each node gets a certificate within one hour
/// after its token is recreated.
async fn ends_certificates_and_tokens(away: Away, outage: Duration) {
    let (world, controller) = after(away, outage, FEW, Duration::ZERO).await;
    nodes_need_recreated_tokens(world, controller, outage).await;
}

async fn nodes_need_recreated_tokens(
    mut world: World,
    mut controller: Option<Controller>,
    outage: Duration,
) {
    let nodes = world.nodes.len();
    assert_eq!(world.certificates(outage), 0);
    assert!(world.tokens_end < outage);

    let recreated = outage + HOUR;
    world.until(recreated, &mut controller).await;
    assert_eq!(world.certificates(recreated), 0);
    assert_eq!(world.undecided, 0, "nothing is filed without a token");
    assert!(world.in_vain >= nodes, "each node tries");

    // `tokens recreate` creates tokens with a lifetime of one hour.
    world.tokens_end = recreated + HOUR;
    world.until(recreated + HOUR, &mut controller).await;
    assert_eq!(world.certificates(recreated + HOUR), nodes);
}

#[tokio::test(start_paused = true)]
async fn after_7_days_without_a_controller_nodes_need_recreated_tokens() {
    ends_certificates_and_tokens(Away::Controller, 7 * DAY).await;
}

#[tokio::test(start_paused = true)]
async fn after_10_days_without_a_controller_nodes_need_recreated_tokens() {
    ends_certificates_and_tokens(Away::Controller, 10 * DAY).await;
}

#[tokio::test(start_paused = true)]
async fn after_10_days_without_an_api_server_nodes_need_recreated_tokens() {
    ends_certificates_and_tokens(Away::ApiServer, 10 * DAY).await;
}

#[tokio::test(start_paused = true)]
async fn after_10_days_without_decisions_nodes_need_recreated_tokens() {
    let outage = 10 * DAY;
    let mut world = World::new(Away::Decisions, outage, RUNNING, Duration::ZERO);
    let mut controller = Some(Controller::start(&world, Duration::ZERO));
    world.until(outage, &mut controller).await;
    assert!(world.last > RUNNING, "nodes send other requests");
    assert!(world.most_of_node <= 3, "{}", world.most_of_node);
    nodes_need_recreated_tokens(world, controller, outage).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_outage_of_up_to_five_days_loses_no_node() {
    for outage in [2 * HOUR, 2 * DAY, 5 * DAY] {
        let (mut world, mut controller) = after(Away::ApiServer, outage, FEW, Duration::ZERO).await;
        assert_eq!(world.certificates(outage), FEW, "{outage:?}");
        assert_eq!(world.last, 0, "{outage:?}");

        // The controller has answered all due requests. The other requests wait until they are due.
        world.until(outage + DAY + 5 * HOUR, &mut controller).await;

        assert_eq!(not_renewed(&world, outage), 0, "{outage:?}");
        assert_eq!((world.undecided, world.in_vain), (0, 0), "{outage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_pending_in_an_api_server_outage_are_decided_or_recreated() {
    for outage in [HOUR, 2 * DAY] {
        let begin = 3 * HOUR;
        let mut world = World::new(Away::ApiServer, begin + outage, FEW, Duration::ZERO);
        world.begin = begin;
        let back = begin + outage;
        world
            .until(back.saturating_sub(Duration::from_secs(1)), &mut None)
            .await;
        let pending = world.undecided;
        assert!(pending > 10, "{pending}");
        assert_eq!(world.most_of_node, 1, "{outage:?}");
        let mut controller = Some(Controller::start(&world, back));

        world.until(back + HOUR, &mut controller).await;

        // The evidence of these requests is too old, so each of these nodes has sent another request.
        assert!(world.last >= 2 * pending, "{} {pending}", world.last);
        assert_eq!(world.undecided, 0, "{outage:?}");
        assert_eq!(world.certificates(back + HOUR), FEW, "{outage:?}");
        assert_eq!(world.in_vain, 0, "{outage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn certificates_expired_in_an_outage_are_replaced_while_tokens_last() {
    // These certificates were not renewed for a different reason: they expire on the day of the outage.
    let ago = LIFETIME.saturating_sub(DAY);
    for (outage, is_back) in [(2 * HOUR, true), (DAY, false)] {
        let (mut world, mut controller) = after(Away::ApiServer, outage, FEW, ago).await;
        let ended = FEW - world.certificates(outage);
        assert!(ended > 30, "{ended}");
        let end = outage + HOUR;

        world.until(end, &mut controller).await;

        assert_eq!(world.certificates(end) == FEW, is_back, "{outage:?}");
        assert_eq!(world.in_vain == 0, is_back, "{outage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_day_without_decisions_denies_no_node_and_all_renew_afterwards() {
    let outage = DAY;
    let mut world = World::new(Away::Decisions, outage, FEW, Duration::ZERO);
    let mut controller = Some(Controller::start(&world, Duration::ZERO));
    world.until(outage, &mut controller).await;
    assert_eq!(world.certificates(outage + 4 * DAY), FEW);
    assert_eq!(world.certificates(outage), FEW);
    assert_eq!(world.most_of_node, 1, "the controller fails old evidence");
    // A node whose evidence is too old sends another request, at increasing intervals.
    assert!((1..=50 * FEW).contains(&world.last), "{}", world.last);

    world.until(outage + DAY + 4 * HOUR, &mut controller).await;

    assert_eq!(not_renewed(&world, outage), 0);
    assert_eq!((world.undecided, world.in_vain), (0, 0));
}
