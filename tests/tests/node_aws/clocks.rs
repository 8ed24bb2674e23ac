//! Tests of a node clock and a server clock that differ by 10 minutes.

use std::time::Duration;

use crate::bed::Bed;

const MINUTES: i64 = 10 * 60;

#[test]
fn a_clock_skew_of_10_minutes_exits_with_14_until_it_is_corrected() {
    for seconds in [-MINUTES, MINUTES] {
        let bed = Bed::new();
        bed.server.set_date_skew(seconds);

        bed.run()
            .failed(14)
            .saying("but the clock of this machine shows")
            .saying("clock")
            .within(Duration::from_secs(5));

        bed.server.set_date_skew(0);
        bed.succeed_in_the_end();
        // The request was created before the server's response showed the server's time, and the next run continues
        // with this request.
        assert_eq!(bed.server.csrs().len(), 1);
    }
}
