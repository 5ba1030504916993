"""Tests of `plan desk`: its pages, answers, sign-ins, and attacks on them, over real HTTP."""
