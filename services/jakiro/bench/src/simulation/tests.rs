//! The results that the paper claims, on the modelled card.

use super::*;
use crate::{
    figure::Figure,
    load::{Lengths, Load, Popularity},
};

fn plan() -> Plan {
    Plan { card: CardParameters::cx3(), server_threads: 4, server_ns: 300, requests: 20_000 }
}

fn rate(figure: Figure, system: System, x: &str, threads: usize) -> f64 {
    let systems = [System::Jakiro, System::ServerReply, System::ServerWrite];
    let points = figure.points(&systems, &[threads], threads, 2000);
    let point = points.iter().find(|point| point.system == system && point.x == x).expect("a point");
    simulate(&plan(), point).rate()
}

#[test]
fn fetched_replies_are_at_least_1_6_times_as_many_as_sent_and_written_ones() {
    for share in ["5 %", "50 %", "95 %"] {
        for figure in [Figure::Fig6, Figure::Fig9] {
            let [fetched, sent, written] = [System::Jakiro, System::ServerReply, System::ServerWrite]
                .map(|system| rate(figure, system, share, 35));
            assert!(fetched >= 1.6 * sent, "{figure:?}, {share}: {fetched} fetched, {sent} sent");
            assert!(fetched >= 1.6 * written, "{figure:?}, {share}: {fetched} fetched, {written} written");
        }
    }
}

#[test]
fn the_peak_of_each_way_is_near_that_of_the_paper() {
    let fetched = rate(Figure::Fig4, System::Jakiro, "35", 35);
    let sent = rate(Figure::Fig4, System::ServerReply, "35", 35);
    assert!((4.5e6..6.0e6).contains(&fetched), "{fetched}, and 5.5 million in the paper");
    assert!((1.8e6..2.3e6).contains(&sent), "{sent}, and 2.1 million in the paper");
    // The card of the server limits both ways of replying.
    let written = rate(Figure::Fig4, System::ServerWrite, "35", 35);
    assert!((0.9..1.1).contains(&(written / sent)), "{written} written, {sent} sent");
}

#[test]
fn values_behind_the_fetch_size_cost_a_third_and_a_longer_fetch_saves_it() {
    let at = |x: &str, fetched_value: usize| {
        let points = Figure::Fig8.points(&[], &[], 35, 2000);
        let is_it = |point: &&Point| point.x == x && point.fetched_value == fetched_value;
        simulate(&plan(), points.iter().find(is_it).expect("a point")).rate()
    };
    let (short, dip, saved) = (at("32", 32), at("64", 32), at("64", 128));
    assert!((0.55..0.75).contains(&(dip / short)), "{short} with 32 bytes, {dip} with 64");
    assert!(saved > 0.95 * short, "{short} with 32 bytes, {saved} with 64 and a longer fetch");
}

#[test]
fn equal_simulations_have_equal_results() {
    let load = Load { get_percent: 50, lengths: Lengths::Texts, popularity: Popularity::Zipf, keys: 500 };
    let mut point = Figure::Fig10.points(&[System::Jakiro], &[], 7, 500).remove(0);
    point.load = load;
    let run = || {
        let sample = simulate(&Plan { requests: 3000, ..plan() }, &point);
        (sample.rate(), sample.mean(), sample.reads_per_reply())
    };
    assert_eq!(run(), run());
}
