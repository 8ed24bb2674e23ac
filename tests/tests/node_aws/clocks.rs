//! Clocks that are ten minutes apart.

use std::time::Duration;

use crate::bed::Bed;

const MINUTES: i64 = 10 * 60;

#[test]
fn an_api_server_ten_minutes_slow_or_fast_is_14_and_the_node_joins_once_it_is_right() {
    for seconds in [-MINUTES, MINUTES] {
        let bed = Bed::new();
        bed.server.set_date_skew(seconds);

        bed.run()
            .failed(14)
            .saying("ours says")
            .saying("clock")
            .within(Duration::from_secs(5));

        bed.server.set_date_skew(0);
        bed.succeed_in_the_end();
        // The request was made before the server's answer told its time, and is taken up again.
        assert_eq!(bed.server.csrs().len(), 1);
    }
}
