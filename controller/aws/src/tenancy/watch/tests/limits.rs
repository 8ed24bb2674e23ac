//! Tests with more Secrets than the controller watches.

use super::*;

#[tokio::test(start_paused = true)]
async fn secrets_above_the_concurrency_limit_wait() {
    let log = ThreadLog::start(Level::INFO);
    let bed = Bed::new();
    for number in 0..MAX_SECRETS + 2 {
        let name = format!("b{number}");
        bed.identity(&name, &name);
        bed.secret(&name, "AKIA1");
    }

    let _running = bed.begin().await;
    assert_eq!(bed.server.watched("secrets").len(), MAX_SECRETS);
    bed.identity("a", "a");
    settle().await;

    assert_eq!(bed.server.watched("secrets").len(), MAX_SECRETS);
    assert_eq!(log.count(&["WARN", "too many Secrets"]), 1);
}
