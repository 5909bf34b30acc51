"""Seam trials: every fault, product and life event in pairs, judged by what writers and receivers recorded.

make seams                         all of it, in pairs; goes on where it stopped
python -m chaos.seams --list       what there is
python -m chaos.seams --only 'kill × plain'
"""
