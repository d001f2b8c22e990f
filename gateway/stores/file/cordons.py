"""The marks in a file of workers.

Owns: their JSON, and what it means when its parts disagree. Must never enter: I/O, a clock, what a mark
means.

``"marks"`` has a list of marks by URL, which is all that a person writes, and all that gateways wrote before
there was an order of what is said. ``"marks_said"`` has when and by whom each of them was said to be there,
``"marks_lifted"`` the same of some that are not there any more. Where these contradict the list, somebody who
knows nothing of them changed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.stores.versioned import Updates, Versioned, undated

LISTS, SAID, LIFTED = MARKS = "marks", "marks_said", "marks_lifted"
#: Cordons that are remembered although they are not there; the oldest are forgotten first.
MOST_LIFTED = 2048


class StoredCordons:
    """Those in ``members``, which are of a JSON object. Raises ValueError, which says where."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        lists = _of_urls(LISTS, members, list)
        said, lifted = _of_urls(SAID, members, dict), _of_urls(LIFTED, members, dict)
        self._known: dict[str, dict[str, Versioned]] = {}
        for url in {**lists, **said, **lifted}:
            dates, gone = said.get(url, {}), lifted.get(url, {})
            there = {
                word: Versioned.from_text(dates.get(word, ""), present=True) for word in lists.get(url, ())
            }
            away = {
                word: Versioned.from_text(text, present=False)
                for word, text in gone.items()
                if word not in there
            }
            self._known[url] = {
                **{word: undated(present=False) for word in dates if word not in there},
                **away,
                **{word: undated(present=True) if word in gone else each for word, each in there.items()},
            }

    @property
    def known(self) -> Updates:
        """All that was said last."""
        return {url: dict(words) for url, words in self._known.items()}

    @property
    def members(self) -> Mapping[str, Any]:
        """As they are to be written; those without content are left out."""
        lists = {
            url: sorted(word for word, said in words.items() if said.present)
            for url, words in self._known.items()
        }
        found = {LISTS: lists, SAID: self._texts(there=True), LIFTED: self._texts(there=False)}
        return {
            name: full for name, by in found.items() if (full := {url: of for url, of in by.items() if of})
        }

    def update(self, edits: Updates) -> None:
        """Add and take away marks, where nothing was said later."""
        for url, words in edits.items():
            known = self._known.setdefault(url, {})
            for word, said in words.items():
                known[word] = max(said, known.get(word, said))
        self._forget()

    def _texts(self, *, there: bool) -> Mapping[str, Mapping[str, str]]:
        return {
            url: {word: said.text for word, said in words.items() if said.present is there and said.dated}
            for url, words in self._known.items()
        }

    def _forget(self) -> None:
        lifted = [
            (said, url, word)
            for url, of in self._known.items()
            for word, said in of.items()
            if not said.present
        ]
        for _, url, word in sorted(lifted, reverse=True)[MOST_LIFTED:]:
            del self._known[url][word]


def _of_urls(name: str, members: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    """The member called ``name``: by URL, lists of texts, or objects of them."""
    found = members.get(name, {})
    of = found.items() if isinstance(found, dict) else [("", None)]
    for url, each in of:
        texts = list(each.values() if isinstance(each, dict) else each or ())
        if not isinstance(each, kind) or not all(isinstance(text, str) for text in texts):
            what = "lists" if kind is list else "objects"
            raise ValueError(f"{name}{f' of {url}' if url else ''} must be {what} of texts, by URL")
    return dict(of)
