//! Whether the servers honour conditions (`If-Match`, `If-None-Match`), also where several come at once: some ignore them, some compare and
//! write in two steps. Found out by racers, once for a store, and noted in an object of it for others; again after [`KEPT`].

use kv_store_sdk::key::hex;
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::answer::Answer;
use crate::bucket::{Bucket, Call};
use crate::manifests::id;
use crate::removal::remove;
use crate::{key, time};

/// Requests that race for one object. SeaweedFS lets one that meets another wait for a second, and each further one for a second more, which is
/// as long as a `patience_ms` may be: so two race for one object, and for many objects at once.
const RACERS: usize = 2;
/// Objects that are raced for, side by side.
const RACES: usize = 12;
/// How often it is tried to find out: a server that is busy may answer too late, or answer a request that was repeated.
const TRIES: usize = 3;
/// For how long what was found out is believed, in seconds.
const KEPT: u64 = 30 * 24 * 3600;
const NOTE: &str = "kv-store-wasm conditions 1";

/// Which requests are carried out only where their condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    pub writes: bool,
    /// Of DELETE. Never without `writes`.
    pub deletes: bool,
}

impl Conditions {
    fn note(self) -> String {
        let word = |holds| if holds { "yes" } else { "no" };
        format!("{NOTE}\nwrites {}\ndeletes {}\n", word(self.writes), word(self.deletes))
    }

    fn of_note(text: &str) -> Option<Self> {
        let found = [(true, true), (true, false), (false, false)];
        let mut found = found.into_iter().map(|(writes, deletes)| Conditions { writes, deletes });
        found.find(|conditions| conditions.note() == text)
    }
}

/// The call that fetches what was found out. It is another object for other gateways: each may compare for itself alone.
pub fn call<'a>(bucket: &Bucket) -> Call<'a> {
    Call::new("GET", note_key(bucket)).max_body(4096)
}

fn note_key(bucket: &Bucket) -> String {
    let digest = Sha256::digest(bucket.gateways().join(","));
    format!("{}{}conditions-{}", bucket.prefix(), key::FOUND_OUT, hex(digest.get(..8).unwrap_or_default()))
}

/// What was found out, by the answer to [`call`], or else now. A store that the keys may not change has none.
pub fn learn(bucket: &Bucket, noted: Result<Answer>) -> Result<Conditions> {
    match noted {
        Ok(answer) if answer.status == 200 => {
            let found = Conditions::of_note(&answer.text()?).filter(|_| is_young(&answer));
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Ok(answer) if answer.status == 404 => {}
        Ok(answer) => return Err(Error::other(format!("the server answered GET with status {}", answer.status))),
        // What lies there is none of ours.
        Err(error) if error.kind == ErrorKind::Exhausted => {}
        Err(error) => return Err(error),
    }
    let mut found = Ok(None);
    for _ in 0..TRIES {
        let races: Vec<String> =
            (0..RACES).map(|_| format!("{}{}race-{}", bucket.prefix(), key::FOUND_OUT, hex(&id()))).collect();
        found = race(bucket, &races);
        let _ = remove(bucket, &races);
        if !matches!(&found, Ok(None) | Err(Error { kind: ErrorKind::Unavailable, .. })) {
            break;
        }
    }
    match found {
        Ok(Some(found)) => {
            let note = Part::Bytes(found.note().into_bytes());
            // Where it cannot be noted, the next one finds it out anew.
            let _ =
                bucket.with_checked_body(Call::new("PUT", note_key(bucket)), vec![note]).map(|call| bucket.ask(call));
            Ok(found)
        }
        Ok(None) => Ok(Conditions::default()),
        // It may not be written here, so nothing is changed either.
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Exhausted) => Ok(Conditions::default()),
        Err(error) => Err(error),
    }
}

/// By the server's own clock.
fn is_young(answer: &Answer) -> bool {
    let time = |name| answer.header(name).and_then(time::of_header);
    time("date").zip(time("last-modified")).is_some_and(|(now, noted)| now.saturating_sub(noted) < KEPT)
}

/// None: the races were disturbed, by requests that were repeated.
fn race(bucket: &Bucket, keys: &[String]) -> Result<Option<Conditions>> {
    let is_even = |race: usize| race.is_multiple_of(2);
    // At first there is nothing: of each race one may win.
    let firsts = run(bucket, keys, |_| Some(("if-none-match", "*".to_owned())), |_| 0)?;
    let first = heads(bucket, keys)?;
    let verdicts: Vec<RaceVerdict> = firsts.iter().zip(&first).map(|(race, there)| verdict(race, there)).collect();
    if verdicts.contains(&RaceVerdict::Broken) {
        return Ok(Some(Conditions::default()));
    }
    // Then there is what has won: again one may. In half of the races one deletes.
    let on_first = |race: usize| first.get(race).cloned().flatten().map(|tag| ("if-match", tag));
    let seconds = run(bucket, keys, on_first, |race| if is_even(race) { 0 } else { 1 })?;
    let second = heads(bucket, keys)?;
    let verdicts: Vec<RaceVerdict> = verdicts
        .into_iter()
        .zip(seconds.iter().zip(&second))
        .map(|(before, (race, there))| before.max(verdict(race, there)))
        .collect();
    // One after the other: what was there is there no more.
    let lates = run(bucket, keys, on_first, |race| if is_even(race) { RACERS / 2 } else { 0 })?;
    let third = heads(bucket, keys)?;
    let (mut writes, mut deletes) = (RaceVerdict::Holds, RaceVerdict::Holds);
    for (race, verdict) in verdicts.into_iter().enumerate() {
        let of = if is_even(race) { &mut writes } else { &mut deletes };
        *of = (*of).max(verdict);
    }
    for (late, _) in lates.iter().zip(0..).filter(|(_, race)| is_even(*race)) {
        let done = |deletes| late.iter().any(|racer| racer.done && racer.deletes == deletes);
        writes = writes.max(if done(false) { RaceVerdict::Broken } else { RaceVerdict::Holds });
        deletes = deletes.max(if done(true) { RaceVerdict::Broken } else { RaceVerdict::Holds });
    }
    // Whatever was answered: something else is there now.
    let is_same = second.iter().zip(&third).step_by(2).all(|(before, after)| before == after);
    if !is_same && deletes == RaceVerdict::Holds {
        writes = RaceVerdict::Broken;
    }
    Ok(match (writes, deletes) {
        (RaceVerdict::Broken, _) => Some(Conditions::default()),
        (RaceVerdict::Disturbed, _) | (_, RaceVerdict::Disturbed) => None,
        (RaceVerdict::Holds, deletes) => Some(Conditions { writes: true, deletes: deletes == RaceVerdict::Holds }),
    })
}

/// What a race shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RaceVerdict {
    Holds,
    /// Nobody has won, and something is there: an answer was lost, and the repeated request failed its condition.
    Disturbed,
    Broken,
}

/// `there`: the ETag of what is there after the race.
fn verdict(race: &[Outcome], there: &Option<String>) -> RaceVerdict {
    let mut done = race.iter().filter(|outcome| outcome.done);
    match (done.next(), done.next()) {
        (Some(winner), None) if winner.deletes => {
            if there.is_none() {
                RaceVerdict::Holds
            } else {
                RaceVerdict::Broken
            }
        }
        (Some(winner), None) if winner.tag.is_some() && winner.tag == *there => RaceVerdict::Holds,
        (None, None) if there.is_some() => RaceVerdict::Disturbed,
        _ => RaceVerdict::Broken,
    }
}

/// What became of a racer.
struct Outcome {
    done: bool,
    deletes: bool,
    tag: Option<String>,
}

/// Let racers run for each object, all at once, by all gateways. `deleters`: how many of a race delete.
fn run(
    bucket: &Bucket,
    keys: &[String],
    condition: impl Fn(usize) -> Option<(&'static str, String)>,
    deleters: impl Fn(usize) -> usize,
) -> Result<Vec<Vec<Outcome>>> {
    let mut calls = Vec::with_capacity(keys.len() * RACERS);
    for (race, key) in keys.iter().enumerate() {
        for racer in 0..RACERS {
            let deletes = racer < deleters(race);
            let call = Call::new(if deletes { "DELETE" } else { "PUT" }, key).by_gateway(racer);
            let call = condition(race).into_iter().fold(call, |call, (name, tag)| call.header(name, tag));
            let body = if deletes { Vec::new() } else { vec![Part::Bytes(id().to_vec())] };
            calls.push(if deletes { call } else { bucket.with_checked_body(call, body)? });
        }
    }
    let mut outcomes = Vec::with_capacity(keys.len());
    let mut answers = bucket.ask_all(calls).into_iter();
    for race in 0..keys.len() {
        let mut of_race = Vec::with_capacity(RACERS);
        for (racer, answer) in (0..RACERS).zip(&mut answers) {
            let deletes = racer < deleters(race);
            of_race.push(match answer {
                Ok(answer) => Outcome {
                    done: (200..300).contains(&answer.status),
                    deletes,
                    tag: answer.etag().map(str::to_owned),
                },
                // It does not know the condition, or was at work for another racer.
                Err(error) if matches!(error.kind, ErrorKind::Unsupported) => {
                    Outcome { done: false, deletes, tag: None }
                }
                Err(error) if error.code.as_deref() == Some("ConditionalRequestConflict") => {
                    Outcome { done: false, deletes, tag: None }
                }
                Err(error) => return Err(error),
            });
        }
        outcomes.push(of_race);
    }
    Ok(outcomes)
}

/// The ETag of each object.
fn heads(bucket: &Bucket, keys: &[String]) -> Result<Vec<Option<String>>> {
    let calls = keys.iter().map(|key| Call::new("HEAD", key)).collect();
    let mut tags = Vec::with_capacity(keys.len());
    for answer in bucket.ask_all(calls) {
        let answer = answer?;
        tags.push(match answer.status {
            200 => answer.etag().map(str::to_owned),
            _ => None,
        });
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racer(done: bool, deletes: bool, tag: &str) -> Outcome {
        Outcome { done, deletes, tag: Some(tag.to_owned()).filter(|tag| !tag.is_empty()) }
    }

    #[test]
    fn a_race_is_won_by_one() {
        let there = |tag: &str| Some(tag.to_owned()).filter(|tag| !tag.is_empty());
        let (lost, won) = (|| racer(false, false, ""), || racer(true, false, "a"));
        let deleted = || racer(true, true, "");
        for (race, left, expected) in [
            (vec![lost(), won(), lost()], "a", RaceVerdict::Holds),
            (vec![lost(), deleted()], "", RaceVerdict::Holds),
            // It was not asked, or has changed since.
            (vec![won(), won()], "a", RaceVerdict::Broken),
            (vec![won(), lost()], "b", RaceVerdict::Broken),
            (vec![won(), lost()], "", RaceVerdict::Broken),
            (vec![racer(true, false, ""), lost()], "", RaceVerdict::Broken),
            (vec![won(), deleted()], "a", RaceVerdict::Broken),
            (vec![lost(), deleted()], "a", RaceVerdict::Broken),
            // It refuses always.
            (vec![lost(), lost()], "", RaceVerdict::Broken),
            (vec![lost(), lost()], "a", RaceVerdict::Disturbed),
        ] {
            assert_eq!(verdict(&race, &there(left)), expected);
        }
        assert!(RaceVerdict::Holds < RaceVerdict::Disturbed && RaceVerdict::Disturbed < RaceVerdict::Broken);
    }

    #[test]
    fn golden_note() {
        let all = Conditions { writes: true, deletes: true };
        assert_eq!(all.note(), "kv-store-wasm conditions 1\nwrites yes\ndeletes yes\n");
        for found in [all, Conditions { deletes: false, ..all }, Conditions::default()] {
            assert_eq!(Conditions::of_note(&found.note()), Some(found));
        }
        assert_eq!(Conditions::of_note("kv-store-wasm conditions 2\nwrites yes\ndeletes yes\n"), None);
    }
}
